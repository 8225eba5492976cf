"""The prefill service: computes prompts, speaks token 0, sends KV to RLD and MD as it comes."""

import sys

from pdd.core.ids import Role
from pdd.runtime.lifecycle import run_main
from pdd.runtime.settings import WorkerSettings
from pdd.wiring.workers import serve_worker


async def serve(settings: WorkerSettings) -> int:
    return await serve_worker(Role.PREFILL, settings)


if __name__ == "__main__":
    sys.exit(run_main(WorkerSettings, Role.PREFILL, serve))
