"""What a link measured, told to its role and to whoever watches: now and then, and when the queue has emptied."""

from ..core.effects import Gauge
from ..core.events import LineMeasured
from ..core.link import LinkEstimator
from ..ports import Notes, Sink


def tell_line(link: LinkEstimator, now: float, sink: Sink, notes: Notes) -> None:
    line = link.report(now)
    if line is None:
        return
    labels = (("site", line.site),)
    notes.note(Gauge("pdd_line_bytes_per_second", line.bytes_per_s, labels))
    notes.note(Gauge("pdd_line_rtt_seconds", line.rtt_s, labels))
    sink(LineMeasured(line))
