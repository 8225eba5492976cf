"""`pdd up`: the model, both sites, what to type next, and then a watch until Ctrl-C or until somebody else ends it."""

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

from .deployment import Deployment
from .fleet import Fleet
from .model import demo_model
from .processes import ProcessRecord
from .run_directory import RunDirectory

WATCH_S = 0.5


def serve(fleet: Fleet, run: RunDirectory, cache_dir: Path, console: Console, *, detach: bool) -> None:
    """Returns when everything has ended; with `detach`, when everything serves."""
    with asked_to_end():
        if fleet.model_dir is None:
            fleet = replace(fleet, model_dir=demo_model(cache_dir, console))
        deployment = Deployment(fleet, run)
        try:
            start_shown(deployment, console)
            console.print(_what_next(deployment, detach), soft_wrap=True)
            if detach:
                return
            _watch(deployment, console)
        except KeyboardInterrupt:
            console.print("ending ...")
        stop_shown(deployment, console)


def start_shown(deployment: Deployment, console: Console) -> None:
    """Start, showing which parts are not ready yet."""
    with console.status("starting both sites") as shown:
        deployment.start(lambda waiting: shown.update(f"waiting for {', '.join(waiting)}"))


def stop_shown(deployment: Deployment, console: Console) -> None:
    """Ending is bounded and must be whole: a second Ctrl-C does not interrupt it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    killed = deployment.stop()
    if killed:
        console.print(f"[yellow]did not end when asked, and were killed: {', '.join(killed)}[/yellow]")
    console.print("all ended")


@contextlib.contextmanager
def asked_to_end() -> Iterator[None]:
    """Inside, SIGTERM and a closed terminal do what Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(deployment: Deployment, console: Console) -> None:
    """Tells of each part that ends; returns when none is left."""
    told: set[str] = set()
    count = len(deployment.parts)
    while len(told) < count:
        for record in deployment.ended():
            if record.name not in told:
                told.add(record.name)
                console.print(f"[yellow]{_obituary(record)}[/yellow]")
        time.sleep(WATCH_S)


def _obituary(record: ProcessRecord) -> str:
    return f"{record.name} has ended; its log: {escape(record.log)}"


def _what_next(deployment: Deployment, detached: bool) -> str:
    return "\n".join(
        [
            f"[green]ready[/green]: {deployment.router_url}/v1",
            f"  curl -N {deployment.router_url}/v1/chat/completions -H 'content-type: application/json' \\",
            """    -d '{"messages":[{"role":"user","content":"Name three rivers."}],"max_tokens":40,"stream":true}'""",
            "  pdd status          sites, workers and line",
            "  pdd line --help     slow, stall or cut the line between the sites",
            "  pdd down            end it" if detached else "  Ctrl-C              end it",
        ]
    )
