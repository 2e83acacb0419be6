"""Parameters of OpenAI's API that this server does not have: accepted where they ask for nothing, refused otherwise.

In: the body of a request. Out: the body without them, or an ApiError that says which one, what was asked and what holds
here. Nothing that would change an answer is ignored.

>>> without_neutral({"model": "m", "n": 1, "tools": None})
{'model': 'm'}
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msparallel.serve.api_error import refuse, shown

_Test = Callable[[Any], bool]
MOST_KEYS, MOST_ITEMS, MOST_LEVELS, MOST_IN_ALL = 100, 10_000, 100, 50_000


def _among(*values: Any) -> _Test:
    return lambda value: any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)


def _text(value: Any) -> bool:
    return isinstance(value, str)


_TOOLS = "this server does not call tools"
_PENALTY = "this server has no penalties"
NEUTRAL: Mapping[str, tuple[_Test, str]] = {
    "n": (_among(1), "this server gives one answer a request"),
    "best_of": (_among(1), "this server gives one answer a request"),
    "tools": (_among([]), _TOOLS),
    "tool_choice": (_among("none"), _TOOLS),
    "parallel_tool_calls": (_among(True, False), _TOOLS),
    "functions": (_among([]), _TOOLS),
    "function_call": (_among("none"), _TOOLS),
    "response_format": (_among({"type": "text"}), "this server answers with plain text"),
    "modalities": (_among(["text"]), "this server answers with plain text"),
    "audio": (_among(), "this server answers with plain text"),
    "prediction": (_among(), "this server takes no predicted output"),
    "web_search_options": (_among(), "this server does not search the web"),
    "logit_bias": (_among({}), "this server has no bias of single tokens"),
    "frequency_penalty": (_among(0), _PENALTY),
    "presence_penalty": (_among(0), _PENALTY),
    "repetition_penalty": (_among(1), _PENALTY),
    "min_p": (_among(0), "this server cuts by top_k and top_p"),
    "suffix": (_among(""), "this server only goes on from a text"),
    "echo": (_among(False), "this server does not repeat the prompt"),
    "reasoning_effort": (_among(), "a model's template may have an option for it: chat_template_kwargs"),
    "verbosity": (_among(), "this server has no such setting"),
    "store": (_among(False), "this server keeps nothing"),
    "metadata": (lambda value: isinstance(value, dict), "it is an object"),
    "service_tier": (_among("auto", "default"), "this server has one tier"),
    "safety_identifier": (_text, "it is a text"),
    "prompt_cache_key": (_text, "it is a text"),
    "prompt_cache_retention": (_text, "it is a text"),
}  # fmt: skip
"""Parameter -> whether a value asks for nothing, and what holds here. null always asks for nothing."""

_ROLES = {"tool": _TOOLS, "function": _TOOLS}
_MESSAGE_KEYS = {"tool_calls": _TOOLS, "function_call": _TOOLS, "audio": "this server reads text only",
                 "refusal": "this server reads `content` only"}  # fmt: skip
_PARTS = {"image_url": "images", "input_image": "images", "input_audio": "audio", "file": "files", "video_url": "video",
          "audio_url": "audio"}  # fmt: skip


def without_neutral(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body without what asks for nothing. Raises ApiError."""
    _check_sizes(body, "", 0, itertools.count(1))
    kept = {}
    for key, value in body.items():
        if key not in NEUTRAL:
            kept[key] = value
        elif value is not None and not NEUTRAL[key][0](value):
            raise refuse(f"{key} is {shown(value)}: {NEUTRAL[key][1]}.", param=key, code="unsupported_parameter")
    if isinstance(kept.get("messages"), list):
        kept["messages"] = [_message(message, number) for number, message in enumerate(kept["messages"])]
    return kept


def _check_sizes(value: Any, place: str, level: int, number: Iterator[int]) -> None:
    """Raises ApiError for an object or a list larger or deeper than any request has, or for too many of them: each item
    could be a problem to tell, and Python's stack has an end."""
    if next(number) > MOST_IN_ALL:
        raise refuse(f"The body has more than {MOST_IN_ALL} values in objects and lists.", param=place or None)
    if level > MOST_LEVELS:
        raise refuse(f"{place} is nested in more than {MOST_LEVELS} levels.", param=place)
    if isinstance(value, dict):
        if len(value) > MOST_KEYS:
            raise refuse(f"{place or 'The body'} has {len(value)} keys; at most {MOST_KEYS} are read.",
                         param=place or None)  # fmt: skip
        for key, inner in value.items():
            _check_sizes(inner, place or key, level + 1, number)
    elif isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        if len(value) > MOST_ITEMS:
            raise refuse(f"{place} has {len(value)} items; at most {MOST_ITEMS} are read.", param=place)
        for inner in value:  # a list that begins with something else is refused at its first object
            _check_sizes(inner, place, level + 1, number)


def _message(message: Any, number: int) -> Any:
    """A message without keys that are null. Raises ApiError for tools, images and the like."""
    if not isinstance(message, dict):
        return message
    place = f"messages[{number}]"
    role = message.get("role")
    if isinstance(role, str) and role in _ROLES:
        raise refuse(f"{place}.role is {role}: {_ROLES[role]}.", param=f"{place}.role", code="unsupported_value")
    kept = {key: value for key, value in message.items() if key not in _MESSAGE_KEYS or value not in (None, [])}
    for key in kept.keys() & _MESSAGE_KEYS.keys():
        raise refuse(f"{place}.{key}: {_MESSAGE_KEYS[key]}.", param=f"{place}.{key}", code="unsupported_parameter")
    for at, part in enumerate(kept["content"] if isinstance(kept.get("content"), list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind in _PARTS:
            param = f"{place}.content[{at}].type"
            raise refuse(f"{param} is {kind}: this server reads text, no {_PARTS[kind]}.", param=param,
                         code="unsupported_value")  # fmt: skip
    return kept
