"""The HTTP application: OpenAI's API over a Service, health, metrics, a page to chat with.

In: a Service, ApiKeys. Out: an ASGI application.

>>> app = create_app(service, ApiKeys([]))  # doctest: +SKIP

/v1/chat/completions, /v1/completions, /v1/models; /healthz (the process and its engine live), /readyz (requests are
taken), /metrics, / and /openapi.json.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from msparallel import __version__
from msparallel.errors import short
from msparallel.serve.answer_text import Piece
from msparallel.serve.api_answer import ChatForm, CompletionForm
from msparallel.serve.api_documents import CHAT, COMPLETION, ERRORS, MODEL, MODELS, STATE
from msparallel.serve.api_error import ApiError, of_validation
from msparallel.serve.api_keys import ApiKeys
from msparallel.serve.api_request import ChatRequest, CompletionRequest
from msparallel.serve.http_answer import ClientGone, EventStream, error_response, json_response, unless_gone
from msparallel.serve.http_guard import Guard
from msparallel.serve.metrics import CONTENT_TYPE
from msparallel.serve.service import Service, TextAnswer, Wanted

_PAGE_RULES = ("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
               "img-src data:; "
               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")  # fmt: skip
_CLIENT_LEFT = 499
"""nginx's number; nobody reads it."""


def create_app(service: Service, keys: ApiKeys) -> FastAPI:
    """Paths of this server."""
    app = FastAPI(title="msparallel serve", version=__version__, docs_url=None, redoc_url=None)

    async def error(request: Request, problem: Exception) -> Response:
        told = _as_api_error(problem)
        service.metrics.errors.labels(str(told.status)).inc()
        response = error_response(told)
        if isinstance(problem, HTTPException):  # 405 says which methods there are
            response.headers.update(problem.headers or {})
        return response

    async def left(request: Request, gone: Exception) -> Response:
        return Response(status_code=_CLIENT_LEFT)

    for kind in (ApiError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, error)
    app.add_exception_handler(ClientGone, left)
    app.add_middleware(Guard, keys=keys, check_room=service.check_room, check_ready=service.check_ready,
                       length=service.settings.max_length,
                       on_error=lambda status: service.metrics.errors.labels(str(status)).inc())  # fmt: skip
    _add_api(app, service)
    _add_state(app, service)
    page = resources.files("msparallel.serve").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/", include_in_schema=False)
    async def chat_page() -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": _PAGE_RULES, "X-Content-Type-Options": "nosniff"})

    return app


def _add_api(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", responses={200: CHAT, **ERRORS}, response_class=Response)
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        form = ChatForm(service.name, int(time.time()),
                        service.tokenizer.text if body.wanted_logprobs is not None else None,
                        body.include_usage)  # fmt: skip
        _check_model(service, body.model)
        messages = [message.for_template() for message in body.messages]
        prompt = await service.chat_prompt(messages, body.chat_template_kwargs or {})
        wanted = _wanted(request, body, prompt, logprobs=body.wanted_logprobs, param="messages")
        return await _answered(request, form, service.answer(wanted), bool(body.stream))

    @app.post("/v1/completions", responses={200: COMPLETION, **ERRORS}, response_class=Response)
    async def completions(request: Request, body: CompletionRequest) -> Response:
        given = body.one_prompt
        form = CompletionForm(service.name, int(time.time()),
                              service.tokenizer.text if body.logprobs is not None else None,
                              body.include_usage)  # fmt: skip
        _check_model(service, body.model)
        prompt = await service.text_prompt(given) if isinstance(given, str) else given
        wanted = _wanted(request, body, prompt, logprobs=body.logprobs, param="prompt")
        return await _answered(request, form, service.answer(wanted), bool(body.stream))

    def model() -> dict[str, Any]:
        return {"id": service.name, "object": "model", "created": service.created_s, "owned_by": "msparallel",
                "max_model_len": service.settings.max_length}  # fmt: skip

    @app.get("/v1/models", responses={200: MODELS, 401: ERRORS[401]}, response_class=Response)
    async def models() -> Response:
        return json_response({"object": "list", "data": [model()]})

    @app.get("/v1/models/{name:path}", responses={200: MODEL, 401: ERRORS[401], 404: ERRORS[404]},
             response_class=Response)  # fmt: skip
    async def one_model(name: str) -> Response:
        _check_model(service, name)
        return json_response(model())


def _add_state(app: FastAPI, service: Service) -> None:
    def state() -> dict[str, Any]:
        loading = service.loading if service.state == "starting" else None
        told = {"what": loading.what, "done": loading.done, "total": loading.total} if loading else None
        return {"state": service.state, "loading": told}

    @app.get("/healthz", responses={200: STATE, 503: STATE}, response_class=Response)
    async def healthz() -> Response:
        return json_response(state(), 503 if service.state == "failed" else 200)

    @app.get("/readyz", responses={200: STATE, 503: STATE}, response_class=Response)
    async def readyz() -> Response:
        return json_response(state(), 200 if service.state == "ready" else 503)

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}}, response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


def _wanted(request: Request, body: ChatRequest | CompletionRequest, prompt: list[int], *, logprobs: int | None,
            param: str) -> Wanted:  # fmt: skip
    return Wanted(
        prompt=prompt, limit=body.limit, temperature=body.temperature, top_p=body.top_p, top_k=body.top_k,
        seed=body.seed, stops=body.stops, logprobs=logprobs, ignore_eos=body.ignore_eos, client=request.state.client,
        param=param,
    )  # fmt: skip


async def _answered(request: Request, form: ChatForm | CompletionForm, answer: TextAnswer, stream: bool) -> Response:
    """The answer at once, or its events. Headers of a stream go out with its first token, so that a request which
    never gets a place is still told by its status."""
    if not stream:
        pieces = await unless_gone(request.receive, _all(answer))
        return json_response(form.whole(pieces, answer))
    reading = aiter(answer)
    first = await unless_gone(request.receive, _next(reading))
    return EventStream(_events(form, answer, first, reading), answer.cancel)


async def _all(answer: TextAnswer) -> list[Piece]:
    return [piece async for piece in answer]


async def _next(reading: AsyncIterator[Piece]) -> Piece:
    return await anext(reading)


async def _events(form: ChatForm | CompletionForm, answer: TextAnswer, first: Piece,
                  reading: AsyncIterator[Piece]) -> AsyncIterator[Any]:  # fmt: skip
    begin = form.begin()
    if begin is not None:
        yield form.event(begin)
    if first.text or first.tokens:
        yield form.event(form.delta(first))
    async for piece in reading:
        if piece.text or piece.tokens:
            yield form.event(form.delta(piece))
    yield form.event(form.end(answer.reason))
    usage = form.usage_event(answer)
    if usage is not None:
        yield usage


def _check_model(service: Service, name: str) -> None:
    if name != service.name:
        raise ApiError(404, f"There is no model {short(name, 100)} here; this server has {service.name}.",
                       param="model", code="model_not_found")  # fmt: skip


def _as_api_error(problem: Exception) -> ApiError:
    if isinstance(problem, ApiError):
        return problem
    if isinstance(problem, RequestValidationError):
        return of_validation(problem.errors())
    if isinstance(problem, HTTPException):
        told = {404: "There is no such path.", 405: "This path does not take this method."}
        code = {413: "body_too_large", 400: "invalid_json", 503: "draining"}.get(problem.status_code)
        message = told.get(problem.status_code, str(problem.detail))
        return ApiError(problem.status_code, message, code=code)
    return ApiError(500, "An error of the server itself; its log has it.", code="internal_error")
