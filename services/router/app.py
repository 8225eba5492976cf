"""The router's HTTP side: OpenAI's API over the router machine.

Each request is checked, turned into ids and submitted; what the machine answers through the `Text` port becomes its response.
A client that leaves, however early, is reported to the machine at once.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version as version_of

import msgspec
import orjson
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from starlette.middleware.cors import CORSMiddleware

from pdd.core.effects import Count
from pdd.core.events import RequestSubmitted
from pdd.ports import Notes
from pdd.runtime.health import METRICS_TYPE, Health

from .access import Access
from .answers import Answers, ChatAnswers, CompletionAnswers, token_text
from .body import read_body
from .bounds import Bounds
from .choice import Choice
from .errors import ApiError, invalid
from .exchange import Exchange, Submit
from .headers import Hooks, RequestIds, choice_request, hooks_of, trace_of
from .open_requests import OpenRequests
from .openapi import describe, takes
from .refusals import ANSWERS
from .schema import Body, ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest, decode
from .settings import EdgeSettings
from .stream import EventStream, collect, usage_of
from .text import ModelText
from .tool_calls import ToolCalls
from .translation import Wanted, chat_wanted, completion_wanted, encode

JSON = "application/json"
VERSION = version_of("pdd")


def create_app(
    open_requests: OpenRequests,
    submit: Submit,
    settings: EdgeSettings,
    notes: Notes,
    text: ModelText,
    health: Health,
    render_metrics: Callable[[], bytes],
    fleet_context: Callable[[], int] = lambda: 0,
    bounds: Bounds | None = None,
) -> FastAPI:
    """`fleet_context`: the longest context that a worker here can hold now, 0 where unknown. Submit from the loop's thread.

    Without `bounds`, an answer cannot be bound to a format.
    """
    app = FastAPI(title="PDD", version=VERSION, redirect_slashes=False)
    bounds = bounds or Bounds(None, lambda feature: False)
    edge = Edge(open_requests, submit, settings, notes, text, fleet_context, bounds)
    _add_middleware(app, settings, notes)
    for error, answer in ANSWERS.items():
        app.add_exception_handler(error, answer)
    post, get = app.router.add_api_route, app.get
    for path, endpoint, kind in (
        ("/v1/chat/completions", edge.chat, ChatRequest),
        ("/v1/completions", edge.completions, CompletionRequest),
        ("/tokenize", edge.tokenize, TokenizeRequest),
        ("/detokenize", edge.detokenize, DetokenizeRequest),
    ):
        post(path, endpoint, methods=["POST"], response_model=None, openapi_extra=takes(kind))
    get("/v1/models")(edge.models)
    get("/v1/models/{model:path}")(edge.model)
    _add_health(app, health, render_metrics)
    describe(app)
    return app


class Edge:
    """The endpoints that speak of the model."""

    def __init__(
        self,
        open_requests: OpenRequests,
        submit: Submit,
        settings: EdgeSettings,
        notes: Notes,
        text: ModelText,
        fleet_context: Callable[[], int],
        bounds: Bounds,
    ) -> None:
        self._open_requests = open_requests
        self._submit = submit
        self._settings = settings
        self._notes = notes
        self._text = text
        self._fleet_context = fleet_context
        self._bounds = bounds
        self._created = int(time.time())

    async def chat(self, request: Request) -> Response:
        body = await self._body(request, ChatRequest)
        with _Counted(self._notes):
            hooks = hooks_of(request.headers, self._settings)
            wanted = await self._admitted(await chat_wanted(body, self._text, self.max_context))
        answers = ChatAnswers(request.state.internal_id, self._settings.model, self._text, with_usage=wanted.with_usage)
        return await self._answer(request, wanted, hooks, answers)

    async def completions(self, request: Request) -> Response:
        body = await self._body(request, CompletionRequest)
        with _Counted(self._notes):
            hooks = hooks_of(request.headers, self._settings)
            wanted = await self._admitted(await completion_wanted(body, self._text, self.max_context))
        answers = CompletionAnswers(
            request.state.internal_id,
            self._settings.model,
            self._text,
            with_usage=wanted.with_usage,
            echoes=wanted.echoes,
        )
        return await self._answer(request, wanted, hooks, answers)

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request, TokenizeRequest)
        if (body.prompt is None) == (body.messages is None):
            raise invalid("prompt", "give either prompt or messages")
        if body.messages is not None:
            prompt = self._text.render(
                body.messages,
                add_generation_prompt=body.add_generation_prompt is not False,
                tools=[msgspec.to_builtins(tool) for tool in body.tools or []],
                options=body.chat_template_kwargs,
            )
        else:
            prompt = body.prompt or ""
        special = body.add_special_tokens if body.add_special_tokens is not None else body.messages is None
        ids = await encode(self._text, prompt, special=special, max_context=self._settings.max_body_bytes)
        return await asyncio.to_thread(self._tokenized, ids, bool(body.return_token_strs))

    def _tokenized(self, ids: Sequence[int], with_strings: bool) -> Response:
        strings = [token_text(self._text, token) for token in ids] if with_strings else None
        return _json({"count": len(ids), "max_model_len": self.max_context, "tokens": ids, "token_strs": strings})

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request, DetokenizeRequest)
        return _json({"prompt": await asyncio.to_thread(self._text.decode, body.tokens, skip_special=False)})

    async def models(self) -> Response:
        return _json({"object": "list", "data": [self._card()]})

    async def model(self, model: str) -> Response:
        self._check_model(model)
        return _json(self._card())

    @property
    def max_context(self) -> int:
        fleet = self._fleet_context()
        return min(fleet, self._settings.max_context) if fleet > 0 else self._settings.max_context

    def _card(self) -> dict[str, object]:
        return {
            "id": self._settings.model,
            "object": "model",
            "created": self._created,
            "owned_by": "pdd",
            "max_model_len": self.max_context,
        }

    async def _body(self, request: Request, kind: type[Body]) -> Body:
        with _Counted(self._notes):
            body = decode(await read_body(request, self._settings), kind)
            self._check_model(body.model)
            return body

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._settings.model:
            text = f"The model {model!r} does not exist; this server has {self._settings.model!r}."
            raise ApiError(text, status=404, param="model", code="model_not_found")

    async def _answer(self, request: Request, wanted: Wanted, hooks: Hooks, answers: Answers) -> Response:
        exchange = self._exchange(request, wanted, hooks)
        if wanted.stream:
            return EventStream(exchange, answers, wanted, self._settings, with_report=hooks.report)
        outcomes = await collect(exchange, request.receive, self._settings, with_report=hooks.report)
        return Response(answers.whole(outcomes, usage_of(exchange, wanted)), media_type=JSON)

    def _exchange(self, request: Request, wanted: Wanted, hooks: Hooks) -> Exchange:
        trace = trace_of(request.headers)
        count = len(wanted.samplings)
        submissions = [
            RequestSubmitted(
                request=choice_request(request.state.internal_id, i, count),
                ids=wanted.prompts[i // wanted.n],
                sampling=sampling,
                cache_salt=wanted.cache_salt,
                traceparent=trace.root(),
                parent_span=trace.parent,
                handover_after=hooks.handover_after,
                route=hooks.route,
            )
            for i, sampling in enumerate(wanted.samplings)
        ]
        choices = [self._choice(i, submission, wanted) for i, submission in enumerate(submissions)]
        return Exchange(self._open_requests, self._submit, submissions, choices, self._settings)

    async def _admitted(self, wanted: Wanted) -> Wanted:
        if wanted.bound.grammar:
            await self._bounds.admit(wanted.bound.grammar, wanted.bound.param)
        return wanted

    def _choice(self, i: int, submission: RequestSubmitted, wanted: Wanted) -> Choice:
        tooling = wanted.tooling
        return Choice(
            i,
            submission.request,
            self._text.detokenizer(skip_special=wanted.skip_special, with_calls=tooling is not None),
            wanted.stops,
            submission.sampling.min_tokens,
            constraint=self._bounds.constraint(wanted.bound.grammar),
            calls=ToolCalls(tooling.format, tooling.names) if tooling else None,
            one_call=tooling is not None and not tooling.many,
        )


class _Counted:
    """What is refused inside is counted by its reason, and the refusal goes on to the client."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ApiError):
            self._notes.note(Count("pdd_requests_refused_total", (("reason", error.code or "invalid_value"),)))


def _add_middleware(app: FastAPI, settings: EdgeSettings, notes: Notes) -> None:
    """The last one stands outermost: a refusal too has its id, and is readable for a browser."""
    app.add_middleware(Access, keys=settings.keys, notes=notes)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(RequestIds)


def _add_health(app: FastAPI, health: Health, render_metrics: Callable[[], bytes]) -> None:
    @app.get("/live")
    @app.get("/health")
    async def alive() -> Response:
        return _json(health.as_dict())

    @app.get("/ready")
    async def ready() -> Response:
        return _json(health.as_dict(), 200 if health.ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(render_metrics(), media_type=METRICS_TYPE)

    @app.get("/version")
    async def version() -> Response:
        return _json({"version": VERSION})


def _json(body: object, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type=JSON)
