"""Notes as operators read them: metrics for Prometheus to scrape, spans for an OpenTelemetry collector.

Noting never waits for anyone: what cannot be exported in time is dropped and counted. A name or label that core/names.py
does not know raises ValueError.
"""

import re
import time
from collections import deque
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client import Gauge as GaugeMetric

from ..core.effects import Count, Gauge, Observe, Span
from ..core.names import KINDS, METRICS, Kind, check
from ..ports import Clock
from .credentials import NO_CREDENTIALS, Credentials
from .notes_otel_aliases import Aliases
from .notes_otel_spans import SpanExport, parse, readable

MOST_SERIES = 200  # label sets of one metric: a peer's reasons must not fill our memory
OTHER = "other"
RECENT_SPANS = 4096
BEHIND_NAME = r"(-[0-9a-f]{12})?(-\d+)?"  # of a request: what makes a client's name its own, and the choice's number
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120)

Series = Counter | GaugeMetric | Histogram


class OtelNotes:
    """`endpoint`: a collector's OTLP/HTTP base URL, for example http://127.0.0.1:4318; None or "": no span leaves."""

    def __init__(
        self,
        service_name: str,
        instance: str,
        endpoint: str | None,
        clock: Clock,
        *,
        credentials: Credentials = NO_CREDENTIALS,
        model: str = "",
    ) -> None:
        """`model`: its name, for metrics and spans under others' names."""
        self._registry = CollectorRegistry()
        self._metrics = {name: _metric(name, self._registry) for name in METRICS}
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = {}
        self._series_of = dict.fromkeys(METRICS, 0)
        ProcessCollector(registry=self._registry)
        self._registry.register(Aliases(self._metrics, lambda name: self._series_of[name] > 0, model))
        self._resource = Resource({"service.name": service_name, "service.instance.id": instance})
        self._wall_minus_now, self._model = time.time() - clock.now(), model
        self._recent: deque[Span] = deque(maxlen=RECENT_SPANS)
        self._export = SpanExport(endpoint, self._readable, self._drop_spans, credentials) if endpoint else None

    def note(self, effect: Count | Gauge | Observe | Span) -> None:
        """Safe from any thread."""
        match effect:
            case Span():
                check(effect)
                self._note_span(effect)
            case Count():
                series = self._find(effect)
                assert isinstance(series, Counter)
                series.inc(effect.amount)
            case Gauge():
                series = self._find(effect)
                assert isinstance(series, GaugeMetric)
                series.set(effect.value)
            case Observe():
                series = self._find(effect)
                assert isinstance(series, Histogram)
                series.observe(effect.value)

    def render(self) -> bytes:
        """What /metrics answers, in Prometheus' text format."""
        return generate_latest(self._registry)

    def recent(self, traceparent: str) -> list[ReadableSpan]:
        """The last spans of this trace that were noted here, oldest first, exported or not."""
        context = parse(traceparent)
        spans = [span for span in self._recent if context and span.traceparent[3:35] == traceparent[3:35]]
        return [self._readable(span) for span in spans]

    def spans_of(self, name: str) -> list[dict[str, Any]]:
        """The last spans noted here of one request, by its client's name too, or of one trace: plain data, times by the wall clock."""
        request = re.compile(re.escape(name) + BEHIND_NAME)
        named = [span for span in list(self._recent) if span.traceparent[3:35] == name or _of_request(span, request)]
        return [
            {
                "service": self._resource.attributes["service.name"],
                "instance": self._resource.attributes["service.instance.id"],
                "name": span.name,
                "trace": span.traceparent[3:35],
                "root": span.root,
                "start_s": span.start + self._wall_minus_now,
                "stop_s": span.stop + self._wall_minus_now,
                "attributes": dict(span.attributes),
            }
            for span in named
        ]

    def close(self) -> None:
        """Sends what waits, within a bound."""
        if self._export:
            self._export.close()

    def _find(self, effect: Count | Gauge | Observe) -> Series:
        name, labels = effect.name, effect.labels
        found = self._series.get((name, labels))
        if found is not None and KINDS[type(effect)] is METRICS[name].kind:
            return found
        check(effect)
        if self._series_of[name] >= MOST_SERIES:
            labels = tuple((label, OTHER) for label, _ in labels)
        metric = self._metrics[name]
        series = metric.labels(*(value for _, value in labels)) if labels else metric
        if (name, labels) not in self._series:
            self._series_of[name] += 1
            self._series[name, labels] = series
        return series

    def _note_span(self, span: Span) -> None:
        context = parse(span.traceparent)
        if context is None:
            self._drop_spans(1)
            return
        self._recent.append(span)
        if self._export and context.sampled:
            self._export.put(span)

    def _readable(self, span: Span) -> ReadableSpan:
        return readable(span, self._resource, self._wall_minus_now, self._model)

    def _drop_spans(self, count: int) -> None:
        self.note(Count("pdd_spans_dropped_total", (), count))


def _of_request(span: Span, request: re.Pattern[str]) -> bool:
    return any(key == "pdd.request" and request.fullmatch(str(value)) for key, value in span.attributes)


def _metric(name: str, registry: CollectorRegistry) -> Series:
    kind, text, labels = METRICS[name]
    match kind:
        case Kind.COUNTER:
            return Counter(name, text, labels, registry=registry)
        case Kind.GAUGE:
            return GaugeMetric(name, text, labels, registry=registry)
        case Kind.HISTOGRAM:
            return Histogram(name, text, labels, registry=registry, buckets=SECONDS)
