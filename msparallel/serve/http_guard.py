"""In front of the API: who asks, whether there is room, how much may be sent, how long sending may take.

In: an ASGI application, ApiKeys, what says whether there is room. Out: the same application; a request without a key
that is known, or for which there is no room, is answered before its body is read, so that a crowd at a full server
costs little; one that is too large or too slow as soon as that shows.

>>> app = Guard(app, ApiKeys([]), service.check_room, service.check_ready, 4096, print)  # doctest: +SKIP
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from msparallel.serve.api_error import ApiError
from msparallel.serve.api_keys import ApiKeys
from msparallel.serve.http_answer import error_response

BODY_BYTES, TOKEN_BYTES, MOST_BODY_BYTES = 1 << 20, 256, 32 << 20
"""A body has at most the first, and the second for every token of the context; in all the third."""
LOOK_S = 0.5
"""How often a body that does not come is asked about."""
BODY_S = 60.0
"""In which a whole body must have come."""
_NEEDS_KEY = "/v1"


class Guard:
    """Args:
    app: behind it. keys: none: everybody may ask.
    check_room, check_ready: raise ApiError where a request would be refused whatever it says; the second not for want
        of room.
    length: tokens of the context.
    on_error: is told the status of what is answered here.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, check_room: Callable[[], None], check_ready: Callable[[], object],
                 length: int, on_error: Callable[[int], object]):  # fmt: skip
        self._most_bytes = min(BODY_BYTES + TOKEN_BYTES * length, MOST_BODY_BYTES)
        self._app, self._keys, self._on_error = app, keys, on_error
        self._check_room, self._check_ready = check_room, check_ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            scope.setdefault("state", {})["client"] = self._client(scope)
            if scope["method"] == "POST":
                _check_head(scope, self._most_bytes)
                self._check_room()
        except ApiError as error:
            self._on_error(error.status)
            return await error_response(error)(scope, receive, send)
        return await self._app(scope, _limited(receive, self._most_bytes, self._check_ready), send)

    def _client(self, scope: Scope) -> str:
        """The key's name, or the address: clients take turns in the queue."""
        address = scope.get("client")
        if not self._keys.needed or not scope["path"].startswith(_NEEDS_KEY):
            return str(address[0]) if address else ""
        client = self._keys.client(_header(scope, b"authorization"))
        if client is None:
            raise ApiError(401, "This server asks for a key: Authorization: Bearer KEY.", code="invalid_api_key")
        return client


def _check_head(scope: Scope, most_bytes: int) -> None:
    """Raises ApiError for a body that is too large by its own words, not JSON, or packed."""
    length = _header(scope, b"content-length") or "0"
    if length.isdecimal() and int(length[:20]) > most_bytes:
        raise _too_large(most_bytes)
    kind = (_header(scope, b"content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "The body must be JSON and say so: Content-Type: application/json.")
    coding = (_header(scope, b"content-encoding") or "identity").strip().lower()
    if coding != "identity":
        raise ApiError(415, "The body must come as it is, without Content-Encoding.")


def _limited(receive: Receive, most_bytes: int, check_ready: Callable[[], object]) -> Receive:
    """`receive` that counts bytes and seconds of the body, and waits for none when the server ends. What it raises is
    answered by the application's handlers."""
    size = 0
    end_s: float | None = None
    whole = False

    async def limited() -> Message:
        nonlocal size, end_s, whole
        if whole:  # only the client's leaving can follow, whenever that is
            return await receive()
        clock = asyncio.get_running_loop().time
        end_s = clock() + BODY_S if end_s is None else end_s
        while True:
            try:
                message = await asyncio.wait_for(receive(), min(LOOK_S, max(0.0, end_s - clock())))
                break
            except asyncio.TimeoutError:
                try:
                    check_ready()
                except ApiError as error:
                    raise HTTPException(error.status, error.message) from None
                if clock() >= end_s:
                    raise HTTPException(408, f"The body did not come within {BODY_S:g} s.") from None
        size += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if size > most_bytes:
            raise HTTPException(413, _too_large(most_bytes).message)
        return message

    return limited


def _too_large(most_bytes: int) -> ApiError:
    return ApiError(413, f"The body has more than {most_bytes} bytes.", code="body_too_large")


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)
