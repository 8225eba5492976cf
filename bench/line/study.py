"""The line study: the same load in the queue model under each order, and at 1/100 of its scale over real sockets."""

import threading
import time

from infra.wan.namespaces import Shape

from .load import KINDS, LINE_BYTES_PER_S, Asked, load, percentile
from .model import SHARES, play
from .pair import Pair
from .places import place
from .section import Section, Told

THEIRS = {"skewed": (0.248, 18.9), "even": (1.2, 25.5)}
SCALE = 100
DELAY_MS = 25
RATE_MBIT = LINE_BYTES_PER_S * 8 / 1e6 / SCALE
HEAD = ("load", "way of sharing", "P50, s", "P90, s", "P99, s", "P99.9, s", "longest, s")


def modelled(told: Told, tls: list[str]) -> Section:
    seconds = told(1200, 60)
    section = Section(
        "The line study in a queue model", f"no machine's: {seconds:g} s of 80 requests/s on 20 Gbit/s, 91 % load",
        "P50 and P99 of the published system stand beside it; stop-and-wait (1 MiB slices, 50 ms) is our guess at what it does.",
        HEAD,
    )  # fmt: skip
    for kind in KINDS:
        asked = list(load(kind, seconds))
        for name, share in SHARES.items():
            section.rows.append(_row(kind, name, play(asked, share)))
        section.rows.append((kind, "published", f"{THEIRS[kind][0]:g}", "", f"{THEIRS[kind][1]:g}", "", ""))
    return section


def on_sockets(told: Told, tls: list[str]) -> Section:
    seconds = told(120, 15)
    section = Section(
        f"The line study on real sockets at 1/{SCALE}", "",
        f"{seconds:g} s of 80 transfers/s of a hundredth of the bytes, TLS; one round trip is in each.", HEAD,
    )  # fmt: skip
    with place(Shape(RATE_MBIT, DELAY_MS)) as where:
        section.place = where.name
        for kind in KINDS:
            for name, options in (("ours", {}), ("unpaced", {"paced": False})):
                with where.pair(tls=tls, **options) as pair:
                    pair.send(40_000_000)
                    taken = _replay(pair, list(load(kind, seconds, scale=SCALE)))
                section.rows.append(_row(kind, name, sorted(taken)))
    return section


def _replay(pair: Pair, asked: list[Asked]) -> list[float]:
    """Each at its time, whether the earlier ones are through or not."""
    names: list[str] = []
    began = time.monotonic()

    def ask() -> None:
        for one in asked:
            time.sleep(max(0.0, began + one.at - time.monotonic()))
            names.append(pair.start(int(one.size)))

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join()
    return [pair.wait(name) for name in names]


def _row(kind: str, name: str, taken: list[float]) -> tuple[str, ...]:
    return (kind, name, *(f"{percentile(taken, share):.3f}" for share in (0.5, 0.9, 0.99, 0.999)), f"{taken[-1]:.2f}")
