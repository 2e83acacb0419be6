"""What goes wrong in a request, in the shape that OpenAI's clients read.

In: status, sentence, the parameter that it is about. Out: `{"error": {"message", "type", "param", "code"}}` with its
status and headers. The openai package makes BadRequestError, RateLimitError ... of the status.

>>> refuse("n is 2; this server gives one answer a request.", param="n").body()
'{"error": {"message": "n is 2; this server gives one answer a request.", "type": "invalid_request_error", "param": "n", "code": null}}'
"""  # noqa: E501 - the example is one line

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from msparallel.errors import printable, short

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 500: "server_error",
          503: "server_error", 504: "timeout_error"}  # fmt: skip
_MOST_TOLD = 5
"""Problems of one request that are told."""
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 50
_REPR.maxdict = _REPR.maxlist = _REPR.maxlevel = 3


class ApiError(Exception):
    """Attributes:
    status: of HTTP.
    message: for a person. param: the key it is about. code: for a program.
    retry_after_s: when to come again.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None,
                 retry_after_s: float | None = None):  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after_s = retry_after_s

    def body(self) -> str:
        """What the client gets: JSON in ASCII, since what a client wrote may hold half of a surrogate pair."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return json.dumps({"error": {"message": printable(self.message), "type": kind, "param": self.param,
                                     "code": self.code}})  # fmt: skip

    def headers(self) -> dict[str, str]:
        """Retry-After in whole seconds; WWW-Authenticate."""
        found = {} if self.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}
        return found | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def shown(value: Any) -> str:
    """What a client wrote, cut short without looking at all of it: it may have megabytes."""
    return str(value).lower() if isinstance(value, bool) else short(_REPR.repr(value), 80)


def refuse(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that is wrong: 400."""
    return ApiError(400, message, param=param, code=code)


def of_validation(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """One refusal with the first few things that are wrong, by pydantic's list of them."""
    if problems and problems[0].get("type") == "json_invalid":
        place = problems[0]["loc"][-1]
        told = problems[0].get("ctx", {}).get("error", "")
        return refuse(f"The body is not JSON: {short(told, 100)} at character {place}.", code="invalid_json")
    of: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for problem in problems:
        key, rest = _key(problem["loc"])
        of.setdefault(key, []).append((rest, problem))
    lines = [_sentence(problem, key + rest) for key, told in of.items()
             for rest, problem in [max(told, key=_likelihood)]]
    more = [f"{len(lines) - _MOST_TOLD} more."] if len(lines) > _MOST_TOLD else []
    return refuse(" ".join([*lines[:_MOST_TOLD], *more]), param=next(iter(of), None) or None)


def _likelihood(one: tuple[str, Mapping[str, Any]]) -> tuple[bool, int]:
    """Of the problems that a value has with each of the types that it may be, the one that is meant: the value was of
    that type, or the problem lies deeper in it."""
    rest, problem = one
    return not str(problem.get("type")).endswith("_type"), rest.count("[") + rest.count(".")


def _key(loc: Sequence[Any]) -> tuple[str, str]:
    """(`messages[0].content`, `[1].type`) of ("body", "messages", 0, "content", "list[TextPart]", 1, "type"): a value
    that may be of several types has a problem with each of them, and names of pydantic's for the types."""
    texts = ["", ""]
    behind = 0
    for part in loc[1:] if loc and loc[0] == "body" else loc:
        if isinstance(part, int):
            texts[behind] += f"[{part}]"
        elif str(part).isidentifier() and str(part) not in ("str", "int", "float", "bool"):
            texts[behind] += f".{part}" if any(texts) else str(part)
        else:
            behind = 1
    return short(texts[0], 100), short(texts[1], 100)


def _sentence(problem: Mapping[str, Any], key: str) -> str:
    kind, told = problem.get("type"), str(problem.get("msg", "")).removeprefix("Value error, ")
    if not key:
        return "The body is not a JSON object."
    if kind == "missing":
        return f"{key} is missing."
    if kind == "extra_forbidden":
        return f"{key} is no parameter of this server."
    return f"{key} is {shown(problem.get('input'))}: {told[:1].lower()}{short(told, 200)[1:]}."
