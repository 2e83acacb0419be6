"""Write sample_corpus.txt, the text that tests train on: the same bytes at every run.

Own prose, stories from a small grammar, functions and tables from templates; documents end at `<|endoftext|>` lines.

    python tests/data/make_sample_corpus.py
"""

from __future__ import annotations

import random
from pathlib import Path

PROSE = [
    """The mill at Ashen Ford

The mill stands where the river bends twice. Nobody remembers who built it, but everybody remembers who broke it: a
flood in a spring with too much snow. The wheel was found a mile downstream, resting against a willow, hardly damaged,
as if it had gone for a walk and grown tired. It took eleven people and two horses to bring it home.

Since then the miller keeps a stick in the water with notches cut into it, one for each hand of height. When the water
reaches the seventh notch the gates are opened, whatever the hour. He says that the stick is the cheapest machine in the
house and the only one that has never failed.
""",
    """On keeping a notebook of failures

Write down what broke before you write down what you did about it. The order matters. A person who has already mended a
thing remembers the mending and forgets the breaking, and the next time the same thing breaks it looks new.

A good entry has four lines. What was seen, with the exact words on the screen. What was expected. What was changed
since it last worked. What turned out to be the cause. The fourth line may stay empty for a week, and that is no shame,
but it must not be filled with a guess. A guess in the fourth line is worse than nothing, because it will be believed.
""",
    """How a choir learns a song

First everybody sings the same line, slowly, until nobody needs the paper. Then the choir is divided, and each group
learns its own line in its own room. At the end they stand together again, and only then do they find out that the
tenors breathe one beat too late.

Training a large model on many machines is not so different. Each machine holds a part, each keeps its own time, and
the sum is only right when all of them wait for one another at the same places. If one of them skips a bar, the song
does not stop. It goes on, wrong.
""",
    """Bread for a cold kitchen

Take five hundred grams of flour, three hundred and fifty of water, ten of salt and very little yeast. Mix until no dry
flour is left. Cover the bowl. Go to bed.

In the morning the dough has doubled, or it has not; in a cold kitchen it needs until noon. Fold it four times, let it
rest for an hour, and bake it in a pot with a lid. The lid is the secret: it keeps the steam in, and the steam keeps the
crust soft long enough for the bread to rise. Take the lid off for the last fifteen minutes.
""",
    """A lighthouse with two lamps

The old lamp turns once in twelve seconds, the new one blinks twice in ten. For one year both were lit, and the ships
complained, because a captain who counts seconds in a storm does not want to count two things at once. So the old lamp
was switched off, and the keeper, who had polished it for thirty years, asked to have it in his garden.

It is still there. Children ask him what it is for. He tells them that it is for finding the tomatoes in the dark.
""",
    """What a clock cannot tell

Two clocks that agree may both be wrong. Three clocks of which two agree may still be wrong, only less often. The
village of Torrin had one clock on the church and one at the station, and they differed by four minutes, and everybody
knew it and nobody minded: you went by the church when you were going to church, and by the station when you were
going away.

The trouble began when somebody set them right.
""",
    """Notes on a slow network

A message costs a fixed time to begin and then a time that grows with its length. Send many short ones and you pay the
beginning again and again; send one long one and everybody waits for its end. Between the two there is a size at which
the road is full and nobody stands still, and it is worth an afternoon to find it.

If the road between two houses is slow, put the people who talk most in the same house.
""",
    """Café au bord de l'eau — eine Notiz in fünf Sprachen

Le matin, la rivière est grise et le café est fort. Am Mittag kommt die Sonne über die Dächer, und die Stühle werden auf
die Straße gestellt. Po południu robi się głośno. 晚上河水变成金色,大家慢慢走回家。 After that only the waiter is
left, counting spoons: 38, 39, 40. One is always missing. He has stopped looking for it: “It lives somewhere else now.”
""",
    """Rules of the reading room

1. Whoever opens the window closes it.
2. Books go back to the shelf they came from, not to the shelf where they fit.
3. A question asked aloud belongs to everybody in the room.
4. Pencils only.
5. If two people want the same book, the one with the shorter question goes first.
6. The cat is not a member and may ignore these rules.
""",
    """并行训练的小故事

一位木匠要做一百把椅子。他一个人做,要一百天。他请来三个朋友,每人做二十五把,二十五天就做完了:这是数据并行。
后来他要做一张很大的桌子,一个人抬不动木板,于是四个人各拿一角:这是张量并行。再后来他们把工作分成四步,锯、刨、拼、漆,
每人只做一步,木料从一个人手里传到下一个人手里:这是流水线并行。木匠说,人多不一定快,会等才会快。
""",
]

HEROES = ["the baker", "a tired ferryman", "Mira", "Old Tomas", "the youngest sister", "a clerk", "the fox", "Ilse"]
PLACES = ["at the harbour", "behind the mill", "in the long meadow", "under the bridge", "on the hill", "by the well"]
THINGS = ["a brass key", "a blue lantern", "three letters", "an empty jar", "a wooden wheel", "a map", "a silver spoon"]
MOODS = ["quiet", "windy", "bright", "cold", "foggy", "warm"]
VERBS = ["found", "lost", "hid", "mended", "carried home", "sold", "painted"]
ENDS = [
    "Nobody asked about it again.",
    "In the evening everybody knew.",
    "That was the first day of the new year.",
    "The rain began soon after.",
    "It is still there today.",
]


def story(draw: random.Random) -> str:
    """A few paragraphs about two persons and a thing."""
    hero, other = draw.sample(HEROES, 2)
    thing = draw.choice(THINGS)
    lines = [f"{hero[0].upper()}{hero[1:]} and {thing}", ""]
    for _ in range(draw.randint(3, 5)):
        sentences = [
            f"It was a {draw.choice(MOODS)} morning {draw.choice(PLACES)}.",
            f"{hero[0].upper()}{hero[1:]} {draw.choice(VERBS)} {thing} {draw.choice(PLACES)}.",
            f'"Is that {thing}?" asked {other}.',
            f'"It was {draw.choice(PLACES)}," said {hero}, "and nobody wanted it."',
            f"So {other} {draw.choice(VERBS)} it, and {hero} went home {draw.choice(['slowly', 'alone', 'happy'])}.",
            draw.choice(ENDS),
        ]
        lines.append(" ".join(sentence for sentence in sentences if draw.random() < 0.8))
    return "\n".join(lines) + "\n"


NOUNS = ["apples", "crates", "letters", "boats", "lamps", "tickets", "stones", "seats"]
OPERATIONS = [("sum", "total += value"), ("largest", "total = max(total, value)"), ("count", "total += value > limit")]


def code(draw: random.Random) -> str:
    """A small Python module."""
    noun = draw.choice(NOUNS)
    parts = [f'"""Counting {noun}."""\n\nLIMIT = {draw.randint(2, 99)}\n']
    for name, line in draw.sample(OPERATIONS, draw.randint(1, 3)):
        unit = draw.choice(["day", "week", "room", "wagon"])
        parts.append(
            f"\n\ndef {name}_of_{noun}({noun}, limit=LIMIT):\n"
            f'    """Return the {name} of {noun} in each {unit}."""\n'
            f"    total = 0\n    for value in {noun}:\n        if value < 0:\n"
            f'            raise ValueError(f"a {unit} cannot have {{value}} {noun}")\n'
            f"        {line}\n    return total\n"
        )
    values = [draw.randint(0, 50) for _ in range(draw.randint(3, 7))]
    parts.append(f'\n\nif __name__ == "__main__":\n    print(sum({values}))  # {sum(values)}\n')
    return "".join(parts)


def table(draw: random.Random) -> str:
    """Sums and products, one a line."""
    first = draw.randint(2, 12)
    rows = [f"{first} x {second} = {first * second}" for second in range(1, 11)]
    rows += [f"{first} + {second} = {first + second}" for second in draw.sample(range(10, 100), 10)]
    return f"Table of {first}\n\n" + "\n".join(rows) + "\n"


def make_sample_corpus() -> str:
    """The whole file."""
    draw = random.Random(20)
    documents = [*PROSE, *(story(draw) for _ in range(45)), *(code(draw) for _ in range(30))]
    documents += [table(draw) for _ in range(12)]
    draw.shuffle(documents)
    return "<|endoftext|>\n".join(documents)


if __name__ == "__main__":
    Path(__file__).with_name("sample_corpus.txt").write_bytes(make_sample_corpus().encode("utf-8"))
