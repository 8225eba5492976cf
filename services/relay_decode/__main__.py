"""The relay_decode service: speaks at once next to P while the prompt's KV still crosses to MD."""

import sys

from pdd.core.ids import Role
from pdd.runtime.lifecycle import run_main
from pdd.runtime.settings import WorkerSettings
from pdd.wiring.workers import serve_worker


async def serve(settings: WorkerSettings) -> int:
    return await serve_worker(Role.RELAY, settings)


if __name__ == "__main__":
    sys.exit(run_main(WorkerSettings, Role.RELAY, serve))
