"""Lines of logs without what must not be shown: passwords, tokens, keys.

In: a line as text. Out: the same line, each secret as `***`.

>>> without_secrets("login http://me:pa55@host/x token=abcdef0123")
'login http://***@host/x token=***'
"""

from __future__ import annotations

import re

_NAME = r"(?:[\w.-]*(?:passw(?:or)?d|pwd|secret|token(?!s)|(?:api|access|private)[_-]?key|credential)[\w-]*)"
_FORMS = (
    (re.compile(r"(?P<kept>://)[^/\s:@]{1,200}(?::[^/\s@]{0,500})?@"), r"\g<kept>***@"),
    (re.compile(r"(?i)(?P<kept>\b(?:bearer|basic)\s+)[\w.~+/=-]{6,}"), r"\g<kept>***"),
    (re.compile(rf"(?i)(?P<kept>(?<![\w.-]){_NAME}[\"']?\s*[=:]\s*)(?:\"[^\"]*\"?|'[^']*'?|[^\s,;&\"')\]}}]+)"),
     r"\g<kept>***"),
    (re.compile(rf"(?i)(?P<kept>(?<![\w.-])--{_NAME}\s+)\S+"), r"\g<kept>***"),
    (re.compile(r"\b(?:hf_|ghp_|gho_|github_pat_|glpat-|sk-|AKIA|LTAI|xox[abp]-)[\w-]{8,}"), "***"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"), "***"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY.*"), "***"),
)  # fmt: skip
"""The forms of the most common clients; what a program invents for itself, nobody can know."""


def without_secrets(line: str) -> str:
    """The line with `***` for each secret."""
    for form, instead in _FORMS:
        line = form.sub(instead, line)
    return line
