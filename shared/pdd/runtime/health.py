"""What a process says about itself over HTTP: live at once, ready while it is wired, connected and not draining."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class Stage(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPED = "stopped"


@dataclass(slots=True)
class Health:
    """Read by the HTTP side, written by the process's lifecycle alone."""

    service: str
    stage: Stage = Stage.STARTING
    connected: Callable[[], bool] = lambda: True  # to the site's broker, once wired
    idle: Callable[[], bool] = lambda: False  # nothing runs here for anybody
    drain: Callable[[], None] = lambda: None  # take nothing new from now on; the process stays

    @property
    def ready(self) -> bool:
        return self.stage is Stage.READY and self.connected()

    def as_dict(self) -> dict[str, str]:
        lost = self.stage is Stage.READY and not self.connected()
        stage = Stage.DRAINED if self.stage is Stage.DRAINING and self.idle() else self.stage
        return {"service": self.service, "status": "disconnected" if lost else stage.value}


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


Spans = Callable[[str], list[dict[str, Any]]]  # of a request or a trace, what this process remembers


def worker_app(health: Health, render_metrics: Callable[[], bytes], spans_of: Spans = lambda name: []) -> Starlette:
    """/live and /health answer 200 while the process runs; /ready answers 503 until it may be given work.

    POST /drain begins a drain; /health says when it is done. The process ends by a signal alone.
    """

    async def alive(request: Request) -> Response:
        return JSONResponse(health.as_dict())

    async def ready(request: Request) -> Response:
        return JSONResponse(health.as_dict(), 200 if health.ready else 503)

    async def metrics(request: Request) -> Response:
        return Response(render_metrics(), media_type=METRICS_TYPE)

    async def drain(request: Request) -> Response:
        health.drain()
        return JSONResponse(health.as_dict(), 202)

    async def spans(request: Request) -> Response:
        return JSONResponse(spans_of(request.path_params["name"]))

    return Starlette(
        routes=[
            *(Route("/live", alive), Route("/health", alive), Route("/ready", ready)),
            *(Route("/metrics", metrics), Route("/spans/{name}", spans), Route("/drain", drain, methods=["POST"])),
        ]
    )
