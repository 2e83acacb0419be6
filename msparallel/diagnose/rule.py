"""Rules of diagnosis: data in `faults/*.yaml`, checked when they are read.

In: the YAML files beside this module. Out: a tuple of `Rule`, in the order in which they are written; where two rules
speak of the same moment, the earlier one is the more exact one.

>>> rules()[0].id
'env_var_out_of_range'
"""

from __future__ import annotations

import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from msparallel.finding import Severity

Kind = Literal["worker", "scheduler", "plog", "dmesg", "npu_smi", "log"]
"""`log` is text that neither its name nor its head tells apart; all patterns are tried on it."""
PatternKind = Literal["any_log", "worker", "scheduler", "plog", "dmesg", "npu_smi"]
ANY_LOG = ("worker", "scheduler", "plog")
SHORTEST_LITERAL = 4
"""In bytes; one at the beginning of a line may be a byte shorter."""
CAUSES = "causes"
"""In `consequence_of`: every rule that does not itself name `causes`."""


_SAYS_CODE = (r"(?i)(?:code|ret|rc|result|status|reason|errno|err|error no|failed|failure|error)"
              r"(?: is| no| value| num| number)?[\s:=(\[\]'\",]{1,4}(?:0x)?")  # fmt: skip
"""What stands before a return code in the logs of CANN, MindSpore and torch_npu."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Pattern(_Strict):
    """What a line must hold: `literal`, and where that is not enough `regex` too. `code` is short for both: a return
    code, where the line says that it is one (`ret: 507011`), and not a step or a size.

    Named groups of `regex`: `rank` (the rank that the line speaks for), `peer` (a rank that others wait for), `device`,
    `pid`; others fill the rule's `detail`. Lines of level WARNING and below count only with `any_level`:
    a job that goes on after a second try has such lines too. A literal that begins with a line's end stands at the
    beginning of a line.
    """

    literal: str = Field(pattern=r"^\n?[^\n]+$")
    regex: str | None = None
    any_level: bool = False

    @model_validator(mode="before")
    @classmethod
    def _of_code(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "code" not in data:
            return data
        code = data["code"]
        if not re.fullmatch(r"\d{6}", str(code)) or {"literal", "regex"} & data.keys():
            raise ValueError("code is six digits and stands for literal and regex")
        rest = {key: value for key, value in data.items() if key != "code"}
        return {"literal": code, "regex": _SAYS_CODE + rf"{code}(?!\d|\.\d|[,/]\d)", **rest}

    @property
    def is_code(self) -> bool:
        """Whether it was written as a `code`."""
        return self.regex is not None and self.regex.startswith(_SAYS_CODE)

    @model_validator(mode="after")
    def _long_enough(self) -> Pattern:
        if len(self.literal.encode()) < SHORTEST_LITERAL - (self.literal[0] == "\n"):
            raise ValueError(f"literal {self.literal!r}: shorter than {SHORTEST_LITERAL} bytes")
        return self

    @model_validator(mode="after")
    def _compiles(self) -> Pattern:
        try:
            re.compile(self.regex or "")
        except re.error as error:
            raise ValueError(f"regex {self.regex!r}: {error}") from None
        return self


class Example(_Strict):
    """Lines of a file of some kind."""

    kind: Kind = "worker"
    text: str


class Rule(_Strict):
    """One fault.

    Attributes:
        patterns: by kind of file; empty for a fault that is concluded from several files (`concluded`).
        consequence_of: rules that explain this one where they are present; empty for what is always a cause.
        waits: this is a time-out: a rank waited for another one, so a silent rank explains it.
        generic: counts only in files in which no other rule finds an error about the same time.
        unknown: says that something failed and not what; it explains the time-outs of others only where it stands well
            before them. With severity `warning` it becomes an error where its process wrote nothing more.
        sums_up: says only that something failed before; any other error of its file, or one before it, explains it.
        at_end: so many last lines of a file in which no other rule speaks are tried; 0 for all lines of all files. With
            severity `warning` it is left out where there is an error in any file.
        detail: a sentence with `{group}` of the patterns; left out where a group was not seen.
        remedy: what to do, in order.
        source: where the text of the message was read.
    """

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    severity: Severity
    root_cause: str
    root_cause_zh: str
    detail: str | None = None
    remedy: str
    remedy_zh: str
    source: str
    patterns: dict[PatternKind, tuple[Pattern, ...]] = {}
    consequence_of: tuple[str, ...] = ()
    waits: bool = False
    generic: bool = False
    unknown: bool = False
    sums_up: bool = False
    concluded: bool = False
    at_end: int = Field(default=0, ge=0, le=100)
    examples: tuple[Example, ...] = ()
    not_examples: tuple[Example, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Rule:
        if self.concluded == bool(self.patterns):
            raise ValueError("a rule has patterns, or is concluded")
        if (self.unknown or self.sums_up) and not self.generic:
            raise ValueError("what is unknown, or sums up, is generic")
        if self.patterns and not (self.examples and self.not_examples):
            raise ValueError("a rule with patterns has an example of each sort")
        return self

    @property
    def doc(self) -> str:
        """Where the fault handbook speaks of it."""
        return f"docs/17_faults.md#{self.id}"

    def may_follow(self, other: Rule) -> bool:
        """Whether the other rule explains this one, where both are found."""
        cause = CAUSES in self.consequence_of and CAUSES not in other.consequence_of
        return other.id != self.id and (cause or other.id in self.consequence_of)

    def patterns_of(self, kind: Kind) -> tuple[Pattern, ...]:
        """The patterns that are tried on a file of this kind."""
        wanted = [of for of in self.patterns if kind in ("log", of) or (of == "any_log" and kind in ANY_LOG)]
        return tuple(pattern for of in wanted for pattern in self.patterns[of])


def read_rules(text: str) -> tuple[Rule, ...]:
    """Rules of one YAML text.

    Raises:
        ValueError: where a rule is not as described above (pydantic's, with the place).
    """
    return tuple(Rule.model_validate(item) for item in yaml.load(text, Loader=_LOADER))


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where it is there: ten times as fast."""


def checked(found: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules themselves, where ids are unique, every name in `consequence_of` is a rule's, and no rule explains
    itself by way of others.

    Raises:
        ValueError: otherwise.
    """
    names = [rule.id for rule in found]
    twice = {name for name in names if names.count(name) > 1}
    unknown = {name for rule in found for name in rule.consequence_of} - {*names, CAUSES}
    if twice or unknown:
        raise ValueError(f"rules: defined twice {sorted(twice)}, not defined {sorted(unknown)}")
    by_id = {rule.id: {other.id for other in found if rule.may_follow(other)} for rule in found}
    try:
        TopologicalSorter(by_id).prepare()
    except CycleError as error:
        raise ValueError(f"rules explain each other: {error.args[1]}") from None
    return found


FILES = ("environment", "start", "collective", "link", "membership", "device", "operator", "host", "cluster",
         "framework", "unknown")  # fmt: skip
"""The files of `faults/`, the most exact rules first."""


def rules_of(name: str) -> tuple[Rule, ...]:
    """The rules of one of `FILES`."""
    return read_rules((files("msparallel.diagnose") / "faults" / f"{name}.yaml").read_text(encoding="utf-8"))


@cache
def rules() -> tuple[Rule, ...]:
    """The rules that come with msparallel."""
    return checked(tuple(rule for name in FILES for rule in rules_of(name)))
