"""What goes back over HTTP: documents, errors, streams of events; and what happens when the client leaves.

In: documents, or an iterator of them. Out: ASGI responses. A stream waits for its own reader only: what a slow one has
not read yet stays in its request's queue, which holds no more than one answer; one that reads nothing at all for
STALL_S is left.

>>> error_response(ApiError(429, "full", retry_after_s=3)).headers["retry-after"]
'3'
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from msparallel.serve.api_error import ApiError

T = TypeVar("T")
STALL_S = 60.0
"""A reader that takes nothing for so long has gone without a word."""
_JSON, _EVENTS = "application/json", "text/event-stream"


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def json_response(document: Any, status: int = 200) -> Response:
    """A document."""
    return Response(json.dumps(document, ensure_ascii=False, allow_nan=False), status, media_type=_JSON)


def error_response(error: ApiError) -> Response:
    """An error with its headers."""
    return Response(error.body(), error.status, error.headers(), media_type=_JSON)


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """What `work` returns; it is cancelled when the client leaves. Raises ClientGone then."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        await _ended(working, leaving)


class EventStream(Response):
    """Server-sent events: `data: DOCUMENT` for each, then `data: [DONE]`.

    Args:
        documents: events; an ApiError in it is the last event, since the status is out already.
        close: is called at the end, however it comes.
    """

    def __init__(self, documents: AsyncIterator[Any], close: Callable[[], object]):
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=_EVENTS)
        del self.headers["content-length"]
        self._documents, self._close = documents, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        try:
            await unless_gone(receive, self._write(send))
        except (ClientGone, asyncio.TimeoutError):
            pass
        finally:
            self._close()

    async def _write(self, send: Send) -> None:
        async def put(body: bytes, more: bool = True) -> None:
            await asyncio.wait_for(send({"type": "http.response.body", "body": body, "more_body": more}), STALL_S)

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for document in self._documents:
                await put(_event(json.dumps(document, ensure_ascii=False, allow_nan=False)))
            await put(_event("[DONE]"))
        except ApiError as error:
            await put(_event(error.body()))
        await put(b"", more=False)


def _event(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs, and wait for it."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
