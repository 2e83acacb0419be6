"""What each refusal of MindFormers' own checks means, which it makes before MindSpore is asked; see `explanations`.

In: the match of MindFormers' words, the Refusal they stand in, and the job's Terms. Out: an `Explanation`. Which words
belong to which function is `translate.MINDFORMERS_TABLE`.

>>> unknown_key(found, refusal, terms).message
'MindFormers has no key dataparallel in parallel_config. Did you mean data_parallel?'
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from msparallel.compile.explanations import Explanation
from msparallel.compile.refusal import Refusal
from msparallel.compile.terms import Terms
from msparallel.interop.mindformers_keys import MODEL, keys_of


def layers_of_stages(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """offset says for every stage how many layers it has beyond num_layers // stages."""
    stages, layers = terms.degrees["pp"], terms.sizes.get("num_layers", 0)
    groups = stages * terms.sizes.get("virtual_stages", 1)
    rest = layers % groups
    offset = [int(index < rest) for index in range(stages)]
    return Explanation(
        name="stage_layers",
        message=f"{layers} layers over {groups} groups are {layers // groups} each and {rest} more. offset has one "
        f"number for each of the {stages} stages, and they add up to {rest}.",
        tries=[{"stage_layers": offset if rest else 0}] if groups == stages else (),
    )


def batch_cut_otherwise(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """The first number of each row of dataset_strategy is data_parallel."""
    degree, rows = int(found["degree"]), int(found["rows"])
    return Explanation(
        name="dataset_strategy",
        message=f"The first row of dataset_strategy cuts the batch into {rows}, and {terms.key('dp')} is {degree} (1 "
        "where it is left out); both must be the same number.",
        tries=[{"dp": rows}],
    )


def unknown_key(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """A section of MindFormers has the keys that its template lists."""
    section, key = found["section"], found["key"]
    close = get_close_matches(key, keys_of(section), n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    return Explanation(name=f"{section}.{key}", message=f"MindFormers has no key {key} in {section}.{meant}")


def missing_key(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """Some keys of a section are needed as soon as the section is there."""
    name = f"{found['section']}.{found['key']}"
    return Explanation(name=name, message=f"MindFormers needs {name} where there is a section {found['section']}.")


def one_thing_twice(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """MindFormers has several names for some values of a model; a file states one of them."""
    model, key, names = terms.config.model if terms.config else {}, found["key"], re.findall(r"\w+", found["names"])
    stated = [name for name in names if name in model]
    if len(stated) > 1:
        message = f"{' and '.join(stated)} are one and the same to MindFormers. Keep one of them."
    else:
        other = next((name for name in names if name != key), key)
        message = f"To MindFormers {key} is another name for {other}, which its model has by default. Write {other}."
    return Explanation(name=MODEL + key, message=message)
