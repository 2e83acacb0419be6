"""MindSpore's words for what its engine refuses, in the recipe's terms.

In: the request and the text of MindSpore's exception. Out: a UserError that names the recipe's line, the rule and a
value that works, as far as the text tells; otherwise MindSpore's own first sentence.
"""

from __future__ import annotations

from msparallel.compile.request import Request
from msparallel.errors import UserError


def engine_error(request: Request, kind: str, text: str) -> UserError:
    """The error to show for an exception of MindSpore's."""
    return UserError(f"{request.source}\n  MindSpore's engine refused rank {request.rank}: {first_words(text)}")


def first_words(text: str) -> str:
    """What an exception says before its stack traces."""
    return text.strip().split("\n\n")[0].split("\n---")[0].strip()
