"""`pdd link`: the way between the sites as its senders measure it, and what its receivers refuse. Live, once, or for programs.

Asked from every process's metrics: those that `pdd up` started here, or any addresses given.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .deployment import DeploymentError
from .run_directory import RunDirectory

PATIENCE_S = 2.0
EVERY_S = 1.0
OF_SENDERS = {
    "pdd_line_bytes_per_second": "bytes_per_s",
    "pdd_line_capacity_bytes_per_second": "capacity_bytes_per_s",
    "pdd_line_pace_bytes_per_second": "pace_bytes_per_s",
    "pdd_line_rtt_seconds": "rtt_s",
    "pdd_line_queue_seconds": "queue_s",
    "pdd_line_queued_bytes": "queued_bytes",
    "pdd_line_loss_ratio": "loss",
    "pdd_line_streams": "streams",
    "pdd_line_packed_ratio": "packed",
    "pdd_kv_connections_lost_total": "connections_lost",
}


@dataclass
class Way:
    """From one process to one site."""

    sender: str
    site: str
    bytes_per_s: float = 0.0
    capacity_bytes_per_s: float = 0.0
    pace_bytes_per_s: float = 0.0
    rtt_s: float = 0.0
    queue_s: float = 0.0
    queued_bytes: float = 0.0
    loss: float = 0.0
    streams: float = 0.0
    packed: float = 1.0
    connections_lost: float = 0.0


@dataclass
class Receiver:
    name: str
    connections: float = 0.0
    staging_bytes: float = 0.0
    dropped: dict[str, float] = field(default_factory=dict)  # by reason


@dataclass
class Seen:
    ways: list[Way] = field(default_factory=list)
    receivers: list[Receiver] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)  # who did not answer


def show_link(run: RunDirectory, at: Sequence[str], console: Console, *, once: bool, as_json: bool) -> None:
    """Until Ctrl-C, or one look. Raises DeploymentError where nothing runs."""
    processes = {address: address for address in at} or _of(run)
    if as_json:
        return console.print_json(data=asdict(look(processes)))
    if once:
        return console.print(drawn(look(processes)))
    with Live(drawn(look(processes)), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(EVERY_S)
                live.update(drawn(look(processes)), refresh=True)
        except KeyboardInterrupt:
            return


def _of(run: RunDirectory) -> dict[str, str]:
    """Name -> host:port."""
    deployed = run.read()
    if deployed is None:
        raise DeploymentError(
            f"nothing runs from {run.path}; `pdd up` starts it, or name processes with --at HOST:PORT"
        )
    return {one.name: f"127.0.0.1:{one.ports['http']}" for one in deployed.processes if "http" in one.ports}


def look(processes: dict[str, str]) -> Seen:
    """All at once."""
    seen = Seen()
    with ThreadPoolExecutor(max(1, len(processes))) as pool:
        pages = list(pool.map(_metrics, processes.values()))
    for name, page in zip(processes, pages, strict=True):
        if page is None:
            seen.silent.append(name)
        else:
            _read(name, page, seen)
    return seen


def _metrics(address: str) -> str | None:
    try:
        return httpx.get(f"http://{address}/metrics", timeout=PATIENCE_S, trust_env=False).raise_for_status().text
    except httpx.HTTPError:
        return None


def _read(name: str, page: str, seen: Seen) -> None:
    ways: dict[str, Way] = {}
    receiver = Receiver(name)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if (kept := OF_SENDERS.get(sample.name)) and "site" in sample.labels:
                way = ways.setdefault(sample.labels["site"], Way(name, sample.labels["site"]))
                setattr(way, kept, sample.value)
            elif sample.name == "pdd_kv_connections":
                receiver.connections = sample.value
            elif sample.name == "pdd_staging_bytes":
                receiver.staging_bytes = sample.value
            elif sample.name == "pdd_kv_frames_dropped_total":
                receiver.dropped[sample.labels["reason"]] = sample.value
    seen.ways += ways.values()
    if receiver.connections or receiver.staging_bytes or receiver.dropped:
        seen.receivers.append(receiver)


# -- drawing ----------------------------------------------------------------------------------------------------------


def drawn(seen: Seen) -> Group:
    parts: list[Any] = [_table_of_ways(seen.ways)] if seen.ways else [Text("no KV has crossed yet", style="dim")]
    if seen.receivers:
        parts.append(_table_of_receivers(seen.receivers))
    if seen.silent:
        parts.append(Text(f"no answer from {', '.join(seen.silent)}", style="red"))
    return Group(*parts)


def _table_of_ways(ways: list[Way]) -> Table:
    table = _table(
        "way", "Mbit/s", "line", "pace", "rtt ms", "queue", "MB left", "loss", "conns", "packed", "lost", left=1
    )
    for way in sorted(ways, key=lambda one: (one.sender, one.site)):
        table.add_row(
            f"{way.sender} > {way.site}", _mbit(way.bytes_per_s), _mbit(way.capacity_bytes_per_s),
            _mbit(way.pace_bytes_per_s) if way.pace_bytes_per_s else "free", f"{way.rtt_s * 1e3:.0f}",
            f"{way.queue_s * 1e3:.0f}", f"{way.queued_bytes / 1e6:.1f}", f"{way.loss:.1%}", f"{way.streams:.0f}",
            f"{way.packed:.2f}", f"{way.connections_lost:.0f}",
        )  # fmt: skip
    table.caption = (
        "Mbit/s: what transfers get; line: the most it carried lately; pace: what bulk is held to; queue in ms"
    )
    table.caption_justify = "left"
    return table


def _table_of_receivers(receivers: list[Receiver]) -> Table:
    table = _table("at", "connections", "staging, MB", "dropped", left=1)
    for one in sorted(receivers, key=lambda one: one.name):
        dropped = ", ".join(f"{reason} {count:.0f}" for reason, count in sorted(one.dropped.items()))
        table.add_row(one.name, f"{one.connections:.0f}", f"{one.staging_bytes / 1e6:.1f}", dropped or "nothing")
    return table


def _table(*titles: str, left: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, title in enumerate(titles):
        words = number < left or title == "dropped"
        table.add_column(title, justify="left" if words else "right", no_wrap=title != "dropped")
    return table


def _mbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8e-6:.1f}" if bytes_per_s else "-"
