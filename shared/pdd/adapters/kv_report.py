"""What a link measured and wants, told to its role and to whoever watches: now and then, and when something has changed."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core.departures import Departures
from ..core.effects import Gauge
from ..core.events import LineMeasured, LineWanted
from ..core.link import LinkEstimator
from ..core.messages import LineState
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
    def to(cls, site: str, owned: bool, paced: bool = True) -> "Site":
        return cls(Pace(LinkEstimator(site), free=not paced), owned)

    def tell(self, boxes: Iterable[Departures], now: float, sink: Sink, notes: Notes) -> None:
        boxes = list(boxes)
        if self.owned and (wants := self.wanting.due(boxes, now)):
            sink(LineWanted(wants))
        line = self.pace.link.report(now)
        if line is None:
            return
        sink(LineMeasured(line))
        for name, value in self._gauges(line, boxes, now).items():
            notes.note(Gauge(name, value, (("site", line.site),)))

    def _gauges(self, line: LineState, boxes: list[Departures], now: float) -> dict[str, float]:
        pace = self.pace.limit(now)
        raw, crossed = (sum(getattr(box.packing, name) for box in boxes) for name in ("raw_bytes", "crossed_bytes"))
        return {
            "pdd_line_bytes_per_second": line.bytes_per_s,
            "pdd_line_rtt_seconds": line.rtt_s,
            "pdd_line_capacity_bytes_per_second": self.pace.link.capacity.bytes_per_s,
            "pdd_line_pace_bytes_per_second": 0.0 if math.isinf(pace) else pace,
            "pdd_line_queue_seconds": line.queue_s,
            "pdd_line_queued_bytes": line.queued_bytes,
            "pdd_line_loss_ratio": line.loss,
            "pdd_line_streams": sum(lane.up for box in boxes for lane in box.lanes),
            "pdd_line_packed_ratio": raw / crossed if crossed else 1.0,
        }
