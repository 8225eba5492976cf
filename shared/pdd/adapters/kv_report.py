"""What a link measured and wants, told to its role and to whoever watches: now and then, and when something has changed."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core.departures import Departures
from ..core.effects import Gauge
from ..core.events import LineMeasured, LineWanted
from ..core.link import LinkEstimator
from ..core.pace import Pace
from ..core.wanting import Wanting
from ..ports import Notes, Sink


@dataclass(slots=True)
class Site:
    """All that one link knows of the way to one site. `owned`: somebody leases that line."""

    pace: Pace
    owned: bool
    wanting: Wanting = field(init=False)

    def __post_init__(self) -> None:
        self.wanting = Wanting(self.pace.link)

    @classmethod
    def to(cls, site: str, owned: bool) -> "Site":
        return cls(Pace(LinkEstimator(site)), owned)

    def tell(self, boxes: Iterable[Departures], now: float, sink: Sink, notes: Notes) -> None:
        if self.owned and (wants := self.wanting.due(boxes, now)):
            sink(LineWanted(wants))
        line = self.pace.link.report(now)
        if line is None:
            return
        labels = (("site", line.site),)
        notes.note(Gauge("pdd_line_bytes_per_second", line.bytes_per_s, labels))
        notes.note(Gauge("pdd_line_rtt_seconds", line.rtt_s, labels))
        sink(LineMeasured(line))
