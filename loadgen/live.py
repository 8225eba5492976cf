"""What happens now: a table in a terminal, a line now and then in a log."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pdd.sim.report import Record
from pdd.sim.report.page import seconds
from pdd.sim.report.summary import spread

REFRESH_S = 0.5
LOG_EVERY_S = 5.0
KEPT = 2000  # the newest requests count in the percentiles shown


@dataclass(slots=True)
class Watch:
    """Told of tokens and ended requests; shows itself until cancelled."""

    console: Console
    tokens: int = 0
    ended: int = 0
    failed: int = 0
    newest: deque[Record] = field(default_factory=lambda: deque(maxlen=KEPT))
    _rates: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=20))

    def saw(self, tokens: int) -> None:
        self.tokens += tokens

    def took(self, record: Record) -> None:
        self.ended += 1
        self.failed += bool(record.error)
        if not record.error:
            self.newest.append(record)

    async def show(self, now: Callable[[], float], under_way: Callable[[], int]) -> None:
        if not self.console.is_terminal:
            while True:
                await asyncio.sleep(LOG_EVERY_S)
                self.console.print(self._line(now(), under_way()), soft_wrap=True)
        with Live(self._table(0.0, 0), console=self.console, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(REFRESH_S)
                live.update(self._table(now(), under_way()), refresh=True)

    def _rate(self, now: float) -> float:
        self._rates.append((now, self.tokens))
        (start, before), (stop, after) = self._rates[0], self._rates[-1]
        return (after - before) / (stop - start) if stop > start else 0.0

    def _line(self, now: float, under_way: int) -> str:
        second = spread(record.second_token_s for record in self.newest)
        return (
            f"{now:6.0f} s  {self.ended} ended, {self.failed} failed, {under_way} under way, {self._rate(now):.0f} tokens/s, "
            f"second token p50 {seconds(second.get('p50'))} p99 {seconds(second.get('p99'))}"
        )

    def _table(self, now: float, under_way: int) -> Table:
        title = f"{now:.0f} s: {self.ended} ended, {self.failed} failed, {under_way} under way, {self._rate(now):.0f} tokens/s"
        table = Table(title=title, title_justify="left")
        for column in ("of the newest", "p50", "p90", "p99", "max"):
            table.add_column(column, justify="left" if column == "of the newest" else "right", min_width=9)
        for name, values in (
            ("first token", spread(record.ttft_s for record in self.newest)),
            ("second token", spread(record.second_token_s for record in self.newest)),
            ("per output", spread(record.tpot_s for record in self.newest)),
            ("largest gap", spread(record.gap_s for record in self.newest if record.outputs > 1)),
            ("whole request", spread(record.e2e_s for record in self.newest)),
        ):
            table.add_row(name, *(seconds(values.get(column)) for column in ("p50", "p90", "p99", "max")))
        return table
