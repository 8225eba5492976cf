"""The main_decode service: takes over at the fence and writes the rest; keeps conversations' KV."""

import sys

from pdd.core.ids import Role
from pdd.runtime.lifecycle import run_main
from pdd.runtime.settings import WorkerSettings
from pdd.wiring.workers import serve_worker


async def serve(settings: WorkerSettings) -> int:
    return await serve_worker(Role.MAIN, settings)


if __name__ == "__main__":
    sys.exit(run_main(WorkerSettings, Role.MAIN, serve))
