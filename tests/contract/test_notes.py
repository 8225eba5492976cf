"""What every notes adapter promises; then what operators get from the OpenTelemetry one, over a real HTTP collector."""

import gzip
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from pdd.adapters.notes_memory import MemoryNotes
from pdd.adapters.notes_otel import MOST_SERIES, OtelNotes
from pdd.adapters.notes_otel_spans import QUEUE_SPANS
from pdd.core.effects import Count, Gauge, Observe, Span
from pdd.core.names import METRICS, SPANS, Kind

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACE = f"00-{TRACE_ID}-{SPAN_ID}-01"
OTHER_TRACE = f"00-{'1' * 32}-{'2' * 16}-01"
WAIT_S = 5.0
EFFECTS: dict[Kind, Callable[[str, tuple[tuple[str, str], ...]], Any]] = {
    Kind.COUNTER: lambda name, labels: Count(name, labels, 2),
    Kind.GAUGE: lambda name, labels: Gauge(name, 2, labels),
    Kind.HISTOGRAM: lambda name, labels: Observe(name, 2, labels),
}


class StoppedClock:
    """A machine's clock that shows 1000 s."""

    def now(self) -> float:
        return 1000.0

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        raise AssertionError("notes never wait")


def otel(endpoint: str | None = None, service: str = "router") -> OtelNotes:
    return OtelNotes(service, f"{service}-1", endpoint, StoppedClock())


@pytest.fixture(params=[MemoryNotes, otel])
def notes(request: pytest.FixtureRequest) -> Any:
    return request.param()


# -- every adapter ----------------------------------------------------------------------------------------------------


def test_every_name_of_the_tables_can_be_noted(notes: Any) -> None:
    for name, metric in METRICS.items():
        notes.note(EFFECTS[metric.kind](name, tuple((label, "x") for label in metric.labels)))
    for name in SPANS:
        notes.note(Span(name, TRACE, 1000.0, 1001.0))


@pytest.mark.parametrize(
    "wrong",
    [
        Count("pdd_nothing_total"),
        Gauge("pdd_prompt_tokens_total", 1),
        Count("pdd_prompt_tokens_total", (("role", "prefill"),)),
        Count("pdd_replans_total"),
        Count("pdd_replans_total", (("why", "x"),)),
        Observe("pdd_inflight_requests", 1),
        Span("nothing", TRACE, 0, 1),
    ],
    ids=repr,
)
def test_what_the_tables_do_not_have_raises_at_once(notes: Any, wrong: Any) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=wrong.name):
            notes.note(wrong)


def test_a_known_series_noted_as_another_kind_raises(notes: Any) -> None:
    notes.note(Count("pdd_prompt_tokens_total"))
    with pytest.raises(ValueError, match="is a counter"):
        notes.note(Gauge("pdd_prompt_tokens_total", 1))


@pytest.mark.parametrize("name", METRICS)
def test_a_metrics_name_says_its_kind_and_unit_as_prometheus_wants(name: str) -> None:
    kind, text, labels = METRICS[name]
    assert re.fullmatch(r"pdd_[a-z0-9_]+", name) and text.endswith(".")
    assert name.endswith("_total") is (kind is Kind.COUNTER) or name == "pdd_pages_total"
    assert kind is not Kind.HISTOGRAM or name.endswith("_seconds")
    assert all(re.fullmatch(r"[a-z]+", label) for label in labels)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_memory_notes_answer_by_name_and_labels() -> None:
    notes = MemoryNotes()
    for reason, amount in (("a", 1), ("b", 2), ("a", 4)):
        notes.note(Count("pdd_replans_total", (("reason", reason),), amount))
    notes.note(Gauge("pdd_pages_free", 7))
    notes.note(Gauge("pdd_pages_free", 5))
    notes.note(Observe("pdd_ttft_seconds", 0.5))
    notes.note(Span("relay", TRACE, 1, 2))
    assert (notes.total("pdd_replans_total"), notes.total("pdd_replans_total", reason="a")) == (7, 5)
    assert (notes.last("pdd_pages_free"), notes.last("pdd_pages_total")) == (5, None)
    assert notes.samples("pdd_ttft_seconds") == [0.5]
    assert notes.spans("relay", TRACE) == [Span("relay", TRACE, 1, 2)]
    assert notes.spans("relay", OTHER_TRACE) == notes.spans("main") == []


# -- metrics for Prometheus -------------------------------------------------------------------------------------------


def samples(notes: OtelNotes) -> dict[str, float]:
    families = text_string_to_metric_families(notes.render().decode())
    return {f"{s.name}{sorted(s.labels.items()) or ''}": s.value for family in families for s in family.samples}


def test_metrics_are_rendered_for_prometheus() -> None:
    notes = otel()
    notes.note(Count("pdd_replans_total", (("reason", "lost"),)))
    notes.note(Count("pdd_replans_total", (("reason", "lost"),), 2))
    notes.note(Gauge("pdd_inflight_requests", 5))
    notes.note(Gauge("pdd_inflight_requests", 3))
    notes.note(Observe("pdd_ttft_seconds", 0.3))
    shown = samples(notes)
    assert shown["pdd_replans_total[('reason', 'lost')]"] == 3
    assert shown["pdd_inflight_requests"] == 3
    assert (shown["pdd_ttft_seconds_count"], shown["pdd_ttft_seconds_sum"]) == (1, 0.3)
    assert shown["pdd_leases_expired_total"] == 0  # known before the first one


def test_a_peers_many_reasons_do_not_fill_the_memory() -> None:
    notes = otel()
    for number in range(MOST_SERIES + 50):
        notes.note(Count("pdd_replans_total", (("reason", f"r{number}"),)))
    shown = {name: value for name, value in samples(notes).items() if name.startswith("pdd_replans_total")}
    assert len(shown) == MOST_SERIES + 1
    assert shown["pdd_replans_total[('reason', 'other')]"] == 50


# -- spans for a collector --------------------------------------------------------------------------------------------


class Collector:
    """A stand-in for an OpenTelemetry collector: takes OTLP over HTTP. `hold` makes it stand still, `refuse` answer 400."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self.requests = 0
        self.refuse = False
        self.flowing = threading.Event()
        self.flowing.set()
        self.changed = threading.Condition()

    def take(self, path: str, body: bytes) -> None:
        self.flowing.wait(WAIT_S)
        assert path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(body)
        with self.changed:
            self.requests += 1
            for resource_spans in request.resource_spans:
                named = {item.key: item.value.string_value for item in resource_spans.resource.attributes}
                for scope_spans in resource_spans.scope_spans:
                    self.spans += [(named["service.name"], span) for span in scope_spans.spans]
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S)


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            self.send_response(400 if collector.refuse else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_port}"
    finally:
        collector.flowing.set()
        server.shutdown()
        thread.join(WAIT_S)
        server.server_close()


def test_spans_of_several_services_join_one_trace_under_the_roots_own_id() -> None:
    with collecting() as (collector, endpoint):
        router, worker = otel(endpoint, "router"), otel(endpoint, "main_decode")
        before = time.time()
        worker.note(Span("extend", TRACE, 1000.5, 1001.0, (("pdd.tokens", 7), ("pdd.way", "wan"), ("s", 0.5))))
        worker.note(Span("main", TRACE, 1001.0, 1002.0))
        router.note(Span("request", TRACE, 1000.0, 1003.0, root=True))
        for notes in (router, worker):
            notes.close()
        spans = {span.name: (service, span) for service, span in collector.spans}
        assert {name: service for name, (service, _) in spans.items()} == {
            "request": "router",
            "extend": "main_decode",
            "main": "main_decode",
        }
        root, extend, main = (spans[name][1] for name in ("request", "extend", "main"))
        assert (root.span_id.hex(), root.parent_span_id.hex()) == (SPAN_ID, "")
        assert {span.trace_id.hex() for span in (root, extend, main)} == {TRACE_ID}
        assert extend.parent_span_id.hex() == main.parent_span_id.hex() == SPAN_ID
        assert len({span.span_id for span in (root, extend, main)}) == 3
        assert {item.key for item in extend.attributes} == {"pdd.tokens", "pdd.way", "s"}
        assert abs(root.start_time_unix_nano / 1e9 - before) < 5  # the machine's 1000.0 is now
        assert root.end_time_unix_nano - root.start_time_unix_nano == 3_000_000_000


def test_the_clients_span_is_the_parent_of_the_root() -> None:
    notes = otel()
    notes.note(Span("request", TRACE, 1000.0, 1003.0, root=True, parent="00f067aa0ba902b7"))
    (root,) = notes.recent(TRACE)
    assert root.context is not None and root.parent is not None
    assert root.context.span_id == int(SPAN_ID, 16)
    assert (root.parent.trace_id, root.parent.span_id) == (int(TRACE_ID, 16), 0x00F067AA0BA902B7)
    assert root.parent.is_remote


def test_a_span_leaves_without_being_asked_for() -> None:
    with collecting() as (collector, endpoint):
        notes = otel(endpoint)
        notes.note(Span("relay", TRACE, 1000.0, 1001.0))
        collector.wait_for(lambda: len(collector.spans) == 1)
        notes.close()


def test_what_the_client_does_not_want_sampled_stays_here() -> None:
    with collecting() as (collector, endpoint):
        notes = otel(endpoint)
        notes.note(Span("relay", TRACE[:-2] + "00", 1000.0, 1001.0))
        notes.close()
        assert collector.requests == 0
        assert len(notes.recent(TRACE)) == 1


def test_recent_spans_of_a_trace_are_kept_whether_or_not_they_are_exported() -> None:
    notes = otel()
    notes.note(Span("relay", TRACE, 1000.0, 1001.0))
    notes.note(Span("relay", OTHER_TRACE, 1000.0, 1001.0))
    notes.note(Span("main", TRACE, 1001.0, 1002.0))
    recent = notes.recent(TRACE)
    assert [span.name for span in recent] == ["relay", "main"]
    assert [span.context for span in recent] == [span.context for span in notes.recent(TRACE)]
    assert notes.recent("nonsense") == []


@pytest.mark.parametrize("traceparent", ["", "nonsense", f"00-{'0' * 32}-{SPAN_ID}-01", f"00-{TRACE_ID}-{'0' * 16}-01"])
def test_a_span_without_a_trace_is_dropped_and_counted(traceparent: str) -> None:
    notes = otel()
    notes.note(Span("relay", traceparent, 1000.0, 1001.0))
    assert samples(notes)["pdd_spans_dropped_total"] == 1


def test_a_collector_that_stands_still_costs_spans_and_no_time() -> None:
    with collecting() as (collector, endpoint):
        collector.flowing.clear()
        notes = otel(endpoint)
        began = time.monotonic()
        for _ in range(3 * QUEUE_SPANS):
            notes.note(Span("relay", TRACE, 1000.0, 1001.0))
        assert time.monotonic() - began < 2
        dropped = samples(notes)["pdd_spans_dropped_total"]
        assert QUEUE_SPANS < dropped <= 2 * QUEUE_SPANS
        collector.flowing.set()
        notes.close()
        assert len(collector.spans) + samples(notes)["pdd_spans_dropped_total"] == 3 * QUEUE_SPANS


def test_a_collector_that_refuses_or_is_not_there_costs_spans_and_closing_is_bounded() -> None:
    with collecting() as (collector, endpoint):
        collector.refuse = True
        refused = otel(endpoint)
        refused.note(Span("relay", TRACE, 1000.0, 1001.0))
        refused.close()
        assert samples(refused)["pdd_spans_dropped_total"] == 1
    nobody = otel(endpoint)
    nobody.note(Span("relay", TRACE, 1000.0, 1001.0))
    began = time.monotonic()
    nobody.close()
    assert time.monotonic() - began < 5
    assert samples(nobody)["pdd_spans_dropped_total"] == 1
