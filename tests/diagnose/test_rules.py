"""Every rule: what it finds, what it leaves alone, that it is whole."""

import re

import pytest

from msparallel.diagnose.files import LogFile
from msparallel.diagnose.prefilter import Prefilter
from msparallel.diagnose.rule import checked, read_rules, rules
from msparallel.diagnose.scan import scan
from msparallel.diagnose.wanted import Wanted

pytestmark = pytest.mark.pure
WANTED = Wanted(rules())
WITH_PATTERNS = [rule for rule in rules() if rule.patterns]


def found_in(text, kind, folder):
    path = folder / "x.log"
    path.write_text(f"something before\n{text}\nsomething behind\n", encoding="utf-8")
    return scan(LogFile(path, path.name, kind, None), WANTED).hits


@pytest.mark.parametrize("rule", WITH_PATTERNS, ids=lambda rule: rule.id)
def test_a_rule_finds_its_examples_and_nothing_in_the_others(rule, tmp_path):
    for example in rule.examples:
        hits = found_in(example.text, example.kind, tmp_path)
        assert rule.id in hits, f"{example.text}: {sorted(hits)}"
        assert hits[rule.id].line == 2
        assert hits[rule.id].evidence[0].text == example.text.strip()
        assert rule.id in found_in(example.text, "log", tmp_path), "a file of no known kind"
    for example in rule.not_examples:
        assert rule.id not in found_in(example.text, example.kind, tmp_path), example.text


@pytest.mark.parametrize("rule", WITH_PATTERNS, ids=lambda rule: rule.id)
def test_every_detail_can_be_filled(rule):
    names = {name for patterns in rule.patterns.values() for pattern in patterns
             for name in re.compile(pattern.regex or "").groupindex}  # fmt: skip
    if rule.detail is not None:
        rule.detail.format_map(dict.fromkeys(names, "x"))


def test_the_prefilter_misses_no_literal():
    literals = [pattern.literal for rule in rules() for patterns in rule.patterns.values() for pattern in patterns]
    ready = Prefilter(literals)
    assert len(literals) > 120
    for literal in literals:
        assert len(list(ready.places(f"x\nab {literal} cd\ny {literal}".encode()))) == 2, literal


def test_a_literal_at_the_beginning_of_a_line():
    ready = Prefilter(["\nE1", "Heartbeat Lost"])
    assert list(ready.places(b"E1 a\nx E1\nE1E1\nE2\nE1")) == [0, 10, 18], "also in the first line of a block"


def test_words_of_common_characters_alone_are_found():
    ready = Prefilter(["error: ", "rror: one", "507011", "Quux"])
    assert len(list(ready.places(b"a\nerror: one\nb\nerror: \nQuux error: \nret 507011 error: \n"))) == 4


def test_rules_speak_plainly():
    for rule in rules():
        for text in (rule.root_cause, rule.remedy, rule.root_cause_zh, rule.remedy_zh):
            assert text[-1] in ".。", f"{rule.id}: {text}"
            assert "\n" not in text.strip() and len(text) < 400


RULE = """
- {id: a, severity: error, root_cause: A., root_cause_zh: A., remedy: B., remedy_zh: B., source: s,
   patterns: {worker: [{literal: "abcdef"}]}, examples: [{text: abcdef}], not_examples: [{text: x}], LINE}
"""


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("colour: red", "colour"),
        ("patterns: {worker: [{literal: abc}]}", "shorter than 4"),
        ("consequence_of: [nobody]", "nobody"),
        ("concluded: true", "concluded"),
        ("severity: fatal", "severity"),
    ],
)
def test_a_wrong_rule_is_refused(line, word):
    text = RULE.replace("severity: error, ", "") if line.startswith("severity") else RULE
    with pytest.raises(ValueError, match=word):
        checked(read_rules(text.replace("LINE", line)))


def test_rules_that_explain_each_other_are_refused():
    one = RULE.replace("LINE", "consequence_of: [b]")
    with pytest.raises(ValueError, match="explain each other"):
        checked(read_rules(one + one.replace("id: a", "id: b").replace("[b]", "[a]")))


def test_a_regex_that_does_not_compile_is_refused():
    with pytest.raises(ValueError, match="regex"):
        read_rules(RULE.replace('{literal: "abcdef"}', '{literal: "abcdef", regex: "("}').replace(", LINE", ""))
