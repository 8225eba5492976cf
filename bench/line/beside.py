"""A small transfer beside large ones: how long it takes against alone, and what of the line the large ones keep."""

import threading
import time
from typing import Any

from infra.wan.namespaces import Shape

from .pair import Pair
from .places import Place, place
from .section import MB, Section, Told, middle, spread

WAN = Shape(500, 25)
SMALL = 2 * MB
LARGE = 200 * MB
LARGE_ONES = 4
REST_S = 0.25


def beside(told: Told, tls: list[str]) -> Section:
    """With pacing, and without it."""
    section = Section(
        "A 2 MB transfer beside four of 200 MB", "",
        f"One every {REST_S:g} s on top of its own time; the large ones begin together and are followed by others.",
        ("", "alone, ms", "beside, ms", "beside / alone", "bulk, of what bulk alone carries"),
    )  # fmt: skip
    with place(WAN) as where:
        section.place = where.name
        for name, options in (("paced", {}), ("unpaced", {"paced": False})):
            _add(section, name, [_run(where, told, dict(options, tls=tls)) for _ in range(told.times(3, 1))])
    return section


def of_another(told: Told, tls: list[str]) -> Section:
    """The large ones are one sender's and the small ones another's: with leases of the line's owner, and without."""
    section = Section(
        "A 2 MB transfer of one sender beside four of 200 MB of another", "",
        "Two sending processes; without leases each paces itself alone.",
        ("", "alone, ms", "beside, ms", "beside / alone", "bulk, of what bulk alone carries"),
    )  # fmt: skip
    with place(WAN) as where:
        section.place = where.name
        for name, options in (("leased", {"owned": True}), ("not leased", {})):
            _add(
                section,
                name,
                [_run(where, told, dict(options, tls=tls, senders=2), 1) for _ in range(told.times(2, 1))],
            )
    return section


def _add(section: Section, name: str, runs: list[dict[str, Any]]) -> None:
    alone, among, kept = ([run[key] for run in runs] for key in ("alone", "beside", "kept"))
    ratios = [middle(two) / middle(one) for one, two in zip(alone, among, strict=True)]
    section.rows.append(
        (
            name,
            spread([value * 1000 for values in alone for value in values], 0),
            spread([value * 1000 for values in among for value in values], 0),
            spread(ratios),
            spread(kept),
        )
    )
    section.data[name] = runs


def _run(where: Place, told: Told, options: dict[str, Any], sender: int = 0) -> dict[str, Any]:
    """`sender`: of the small ones; the first has the large ones."""
    count = told.times(15, 6)
    with where.pair(**options) as pair:
        for number in {0, sender}:
            pair.send(60 * MB, number)
        for _ in range(3):
            pair.send(SMALL, sender)
        alone = [_send_small(pair, sender) for _ in range(count)]
        bulk = Bulk(pair)
        bulk.wait_until_steady()
        by_itself = bulk.rate_over(told(4, 2))
        began, before = time.monotonic(), bulk.crossed()
        among = [_send_small(pair, sender) for _ in range(count)]
        kept = (bulk.crossed() - before) / (time.monotonic() - began)
        bulk.stop()
    return {"alone": alone, "beside": among, "kept": kept / by_itself, "bulk_alone_bytes_per_s": by_itself}


def _send_small(pair: Pair, sender: int) -> float:
    seconds = pair.send(SMALL, sender)
    time.sleep(REST_S)
    return seconds


class Bulk:
    """Keeps so many large transfers going, and counts what has crossed."""

    def __init__(self, pair: Pair) -> None:
        self._pair, self._stopped = pair, False
        self._names = [pair.start(LARGE) for _ in range(LARGE_ONES)]
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        while not self._stopped:
            for number, name in enumerate(self._names):
                if self._pair.finished(name):
                    self._names[number] = self._pair.start(LARGE)
            time.sleep(0.05)

    def crossed(self) -> int:
        """Bytes of large transfers that have landed by now."""
        return self._pair.landed_bytes()

    def wait_until_steady(self) -> None:
        while self.crossed() < 60 * MB:
            time.sleep(0.05)

    def rate_over(self, seconds: float) -> float:
        began, before = time.monotonic(), self.crossed()
        time.sleep(seconds)
        return (self.crossed() - before) / (time.monotonic() - began)

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()
        for name in self._names:
            self._pair.cancel(name)
