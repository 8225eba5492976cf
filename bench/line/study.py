"""The line study: the same load in the queue model under each order, and at 1/100 of its scale over real sockets."""

import threading
import time

from infra.wan.namespaces import Shape
from pdd.sim.report.plot import line_plot

from .load import KINDS, LINE_BYTES_PER_S, Asked, load, percentile
from .model import SHARES, play
from .pair import Pair
from .places import place
from .section import Section, Told

THEIRS = {"skewed": (0.248, 18.9), "even": (1.2, 25.5)}
SCALE = 100
HEADERS = 0.95  # of the shaped rate, what is left for payload: so that the load is 91 % of that
LAYERS = 1  # 1 KiB a token
DELAY_MS = 25
RATE_MBIT = LINE_BYTES_PER_S * 8 / 1e6 / SCALE
OVER = [10 ** (-step / 10) for step in range(1, 31)]  # shares of transfers, down to one in a thousand
HEAD = ("load", "way of sharing", "P50, s", "P90, s", "P99, s", "P99.9, s", "longest, s")


def modelled(told: Told, tls: list[str]) -> Section:
    seconds = told(400, 60)
    section = Section(
        "The line study in a queue model", f"no machine's: {seconds:g} s of 80 requests/s on 20 Gbit/s, 91 % load",
        "P50 and P99 of the published system stand beside it; stop-and-wait (1 MiB slices, 50 ms) is our guess at what it does.",
        HEAD,
    )  # fmt: skip
    for kind in KINDS:
        asked = list(load(kind, seconds))
        for name, share in SHARES.items():
            _add(section, kind, name, play(asked, share))
        section.rows.append((kind, "published", f"{THEIRS[kind][0]:g}", "", f"{THEIRS[kind][1]:g}", "", ""))
        section.plots[f"line_model_{kind}.svg"] = _tails(section, kind, "in the queue model")
    return section


def on_sockets(told: Told, tls: list[str]) -> Section:
    seconds = told(60, 15)
    section = Section(
        f"The line study on real sockets at 1/{SCALE}", "",
        f"{seconds:g} s of 80 transfers/s of a hundredth of the bytes (91 % of the payload it carries), TLS, one round trip.", HEAD,
    )  # fmt: skip
    with place(Shape(RATE_MBIT, DELAY_MS)) as where:
        section.place = where.name
        for kind in KINDS:
            for name, options in (("ours", {}), ("unpaced", {"paced": False})):
                with where.pair(tls=tls, layers=LAYERS, **options) as pair:
                    pair.send(40_000_000)
                    taken = _replay(pair, list(load(kind, seconds, scale=SCALE / HEADERS)))
                _add(section, kind, name, sorted(taken))
            section.plots[f"line_sockets_{kind}.svg"] = _tails(section, kind, f"on sockets at 1/{SCALE}")
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


def _add(section: Section, kind: str, name: str, taken: list[float]) -> None:
    """`taken` is sorted."""
    shares = (percentile(taken, share) for share in (0.5, 0.9, 0.99, 0.999))
    section.rows.append((kind, name, *(f"{seconds:.3f}" for seconds in shares), f"{taken[-1]:.2f}"))
    section.data.setdefault(kind, {})[name] = [(over, percentile(taken, 1 - over)) for over in OVER]


def _tails(section: Section, kind: str, where: str) -> str:
    lines = {name: [(seconds, over) for over, seconds in tail] for name, tail in section.data[kind].items()}
    middle_s, late_s = THEIRS[kind]
    lines["published (P50, P99)"] = [(middle_s, 0.5), (late_s, 0.01)]
    title = f"Share of transfers that take longer, {kind} hits, {where}"
    return line_plot(title, lines, x="seconds", y="share", log_x=True, log_y=True)
