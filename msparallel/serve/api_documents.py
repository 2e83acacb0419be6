"""What the API answers, for /openapi.json.

In: nothing. Out: response descriptions by status, as OpenAPI 3.1 writes them.

>>> sorted(ERRORS)[:3]
[400, 401, 404]
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _json(told: str, schema: Schema, **more: Schema) -> dict[str, Any]:
    return {"description": told, "content": {"application/json": {"schema": schema}, **more}}


_TEXT, _NUMBER, _COUNT = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0}
_EVENTS: Schema = {"text/event-stream": {}}
_ERROR = _object(error=_object(message=_TEXT, type=_TEXT, param=_or_null(_TEXT), code=_or_null(_TEXT)))
_USAGE = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
_END = {"enum": ["stop", "length"]}
_TOKEN = {"token": _TEXT, "logprob": _NUMBER, "bytes": _list(_COUNT)}
_CHAT_LOGPROBS = _object(content=_list(_object(**_TOKEN, top_logprobs=_list(_object(**_TOKEN)))))
_COMPLETION_LOGPROBS = _object(tokens=_list(_TEXT), token_logprobs=_list(_NUMBER),
                               top_logprobs=_list({"type": "object", "additionalProperties": _NUMBER}),
                               text_offset=_list(_COUNT))  # fmt: skip


def _answer(kind: str, logprobs: Schema, **content: Schema) -> Schema:
    choice = _object(index=_COUNT, **content, logprobs=_or_null(logprobs), finish_reason=_END)
    return _object(id=_TEXT, object={"const": kind}, created=_COUNT, model=_TEXT, choices=_list(choice), usage=_USAGE)


_MODEL = _object(id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT, max_model_len=_COUNT)
_STATE = _object(
    state={"enum": ["starting", "ready", "draining", "failed"]},
    loading=_or_null(_object(what=_TEXT, done=_COUNT, total=_COUNT)),
)
MODEL = _json("The model.", _MODEL)
MODELS = _json("The model of this server.", _object(object={"const": "list"}, data=_list(_MODEL)))
STATE = _json("The server's state.", _STATE)
CHAT = _json("The answer, or its events.", _answer("chat.completion", _CHAT_LOGPROBS,
             message=_object(role={"const": "assistant"}, content=_TEXT)), **_EVENTS)  # fmt: skip
COMPLETION = _json("The answer, or its events.", _answer("text_completion", _COMPLETION_LOGPROBS, text=_TEXT),
                   **_EVENTS)  # fmt: skip
ERRORS: dict[int | str, dict[str, Any]] = {status: _json(told, _ERROR) for status, told in {
    400: "The request is wrong.",
    401: "No key that is known.",
    404: "No such model.",
    408: "The body did not come.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "Not used: a request that is wrong gets 400.",
    429: "The queue is full; Retry-After says when to come again.",
    503: "Not ready, draining, all places taken for too long, or the engine has ended.",
    504: "The answer took too long.",
}.items()}  # fmt: skip
"""Status -> description."""
