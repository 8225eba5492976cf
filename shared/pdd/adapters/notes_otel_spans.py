"""Spans on their way to a collector: all services' spans of a request join one trace by its traceparent.

A root span has the very id that the traceparent names, so that its children, noted anywhere, find it; the client's span, if it
sent one, is the root's parent. Export runs in one
thread behind a bounded queue; a full queue or a collector that does not take them drops spans, and says how many.
"""

import logging
import queue
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from ..core.effects import Span
from .credentials import Credentials

QUEUE_SPANS = 4096
BATCH_SPANS = 256
LINGER_S = 1.0
EXPORT_S = 5.0
CLOSE_S = 3.0

OPERATION = "chat"
FINISH_REASONS = "gen_ai.response.finish_reasons"

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SCOPE = InstrumentationScope("pdd")
_NANO = 1_000_000_000

log = logging.getLogger(__name__)


class TraceContext(NamedTuple):
    trace_id: int
    span_id: int
    sampled: bool


def parse(traceparent: str) -> TraceContext | None:
    """None for what W3C Trace Context does not allow."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    return TraceContext(trace_id, span_id, bool(flags & 1)) if trace_id and span_id else None


def readable(span: Span, resource: Resource, wall_minus_now: float, model: str = "") -> ReadableSpan:
    """`span` must have a valid traceparent. A request's root is what OpenTelemetry's GenAI conventions call it, if `model` is known."""
    context = parse(span.traceparent)
    assert context is not None
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    named = SpanContext(context.trace_id, context.span_id, is_remote=not span.root, trace_flags=flags)
    own = named if span.root else SpanContext(context.trace_id, _span_id(span, resource), False, flags)
    client = SpanContext(context.trace_id, int(span.parent, 16), True, flags) if span.parent else None
    gen_ai = span.root and bool(model)
    return ReadableSpan(
        name=f"{OPERATION} {model}" if gen_ai else span.name,
        context=own,
        parent=client if span.root else named,
        resource=resource,
        attributes={**dict(span.attributes), **(_gen_ai(span, model) if gen_ai else {})},
        kind=SpanKind.SERVER if span.root else SpanKind.INTERNAL,
        start_time=round((span.start + wall_minus_now) * _NANO),
        end_time=round((span.stop + wall_minus_now) * _NANO),
        instrumentation_scope=_SCOPE,
    )


def _gen_ai(span: Span, model: str) -> dict[str, Any]:
    """What the conventions want of a server's span and the machine does not know, or tells as one word."""
    reasons = tuple(str(value) for name, value in span.attributes if name == FINISH_REASONS)
    return {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": "pdd",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        FINISH_REASONS: reasons,
    }


def _span_id(span: Span, resource: Resource) -> int:
    """The same for the same span, however often it is read; another for every other span of any process."""
    said = repr((span, resource.attributes["service.instance.id"])).encode()
    return int.from_bytes(blake2b(said, digest_size=8).digest()) or 1


class SpanExport:
    """`put` from any thread; `dropped(count)` is called for what never arrived."""

    def __init__(
        self,
        endpoint: str,
        readable: Callable[[Span], ReadableSpan],
        dropped: Callable[[int], None],
        credentials: Credentials,
    ) -> None:
        self._readable, self._dropped = readable, dropped
        self._exporter: Any = OTLPSpanExporter(
            endpoint=f"{endpoint.rstrip('/')}/v1/traces",
            timeout=EXPORT_S,
            certificate_file=credentials.file("ca.pem"),
            client_certificate_file=credentials.file("cert.pem"),
            client_key_file=credentials.file("key.pem"),
        )
        self._queue: queue.Queue[Span | None] = queue.Queue(QUEUE_SPANS)
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)
        self._thread.start()

    def put(self, span: Span) -> None:
        try:
            self._queue.put_nowait(span)
        except queue.Full:
            self._dropped(1)

    def close(self) -> None:
        """Sends what waits if that is done within CLOSE_S; the rest is dropped."""
        until = time.monotonic() + CLOSE_S
        with suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_S)
        self._thread.join(max(0.0, until - time.monotonic()))
        self._exporter.shutdown()  # ends a retry under way
        self._thread.join(1.0)

    def _run(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._next_batch()
            if batch and not self._arrived(batch):
                self._dropped(len(batch))

    def _arrived(self, batch: list[Span]) -> bool:
        try:
            return bool(self._exporter.export([self._readable(span) for span in batch]) is SpanExportResult.SUCCESS)
        except Exception:  # telemetry may fail in ways of its own; serving goes on, and so does this thread
            log.exception("spans were not exported")
            return False

    def _next_batch(self) -> tuple[list[Span], bool]:
        """Waits for the first span, then LINGER_S at most for more. False: the end was asked for."""
        batch: list[Span] = []
        until: float | None = None
        while len(batch) < BATCH_SPANS:
            try:
                span = self._queue.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if span is None:
                return batch, False
            batch.append(span)
            until = until or time.monotonic() + LINGER_S
        return batch, True
