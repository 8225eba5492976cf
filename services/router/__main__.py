"""The router service: the OpenAI API, the text layer, and the machine that routes and stitches. Text lives only here."""

import sys

from pdd.adapters.grammar import grammars_of
from pdd.core.ids import Role
from pdd.runtime.health import Health
from pdd.runtime.lifecycle import listen, run_main, run_service
from pdd.runtime.settings import RouterSettings
from pdd.wiring.process import Process
from pdd.wiring.router import make_router, open_router

from .abortable import AbortableHttp
from .access import read_keys
from .app import create_app
from .bounds import Bounds
from .open_requests import OpenRequests
from .settings import EdgeSettings
from .status import fleet_can, fleet_status, longest_context
from .text import ModelText


async def serve(settings: RouterSettings) -> int:
    sock = listen(settings.http_host, settings.http_port)
    process = Process(Role.ROUTER, settings, sock)
    router = make_router(process, settings)
    text, open_requests, health = ModelText(settings.model_dir), OpenRequests(), Health(Role.ROUTER)
    app = create_app(
        open_requests,
        process.post,
        edge_settings(settings, text),
        process.notes,
        text,
        health,
        process.notes.render,
        lambda: longest_context(router.machine, process.clock.now()),
        Bounds(
            grammars_of(settings.model_dir), lambda feature: fleet_can(router.machine, process.clock.now(), feature)
        ),
    )
    app.get("/status")(lambda: fleet_status(router.machine, process.clock.now()))
    app.get("/spans/{name}")(process.notes.spans_of)
    wired = open_router(process, router, open_requests)
    return await run_service(app, health, sock, wired, settings.drain_s, http=AbortableHttp)


def edge_settings(settings: RouterSettings, text: ModelText) -> EdgeSettings:
    return EdgeSettings(
        model=settings.model_name or settings.model_dir.resolve().name,
        max_context=text.max_context,
        keys=read_keys(settings.api_keys, settings.api_keys_file, settings.key_requests),
        cors_origins=tuple(origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()),
        report=settings.report,
        test_hooks=settings.test_hooks,
    )


if __name__ == "__main__":
    sys.exit(run_main(RouterSettings, Role.ROUTER, serve))
