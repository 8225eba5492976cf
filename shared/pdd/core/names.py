"""Every metric and span of PDD, in one table each.

The notes adapters refuse a name, a kind or a label that does not stand here. Units end the names, as Prometheus wants;
histograms are all in seconds.
"""

from enum import StrEnum
from typing import NamedTuple

from .effects import Count, Gauge, Observe, Span


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    kind: Kind
    help: str
    labels: tuple[str, ...]


def _counter(help: str, *labels: str) -> Metric:
    return Metric(Kind.COUNTER, help, labels)


def _gauge(help: str, *labels: str) -> Metric:
    return Metric(Kind.GAUGE, help, labels)


def _histogram(help: str, *labels: str) -> Metric:
    return Metric(Kind.HISTOGRAM, help, labels)


METRICS: dict[str, Metric] = {
    # requests, at the router
    "pdd_requests_total": _counter("Requests that ended, by how.", "outcome"),
    "pdd_requests_refused_total": _counter("Requests refused before anything was done for them.", "reason"),
    "pdd_workers_refused_total": _counter("Workers of another model, by the field that differs.", "worker", "field"),
    "pdd_routes_total": _counter("Requests by the route chosen.", "route"),
    "pdd_replans_total": _counter("Epochs raised because a cast lost a member or stood still.", "reason"),
    "pdd_prompt_tokens_total": _counter("Prompt tokens of accepted requests."),
    "pdd_tokens_dropped_total": _counter("Outputs that came and were not the next ones.", "reason"),
    "pdd_cuts_total": _counter("Transfers to MD that were cut, by how RLD came first.", "kind"),
    "pdd_cuts_withheld_total": _counter("Transfers that went on so that MD learns, though RLD was first.", "reason"),
    "pdd_warm_ups_total": _counter("Prompts sent to MD after the client was served, by outcome.", "outcome"),
    "pdd_hit_ratio": _gauge("Hits as a share of prompt tokens, recent requests that went to P and MD.", "role"),
    "pdd_hit_gap_ratio": _gauge("P's hits minus MD's, as a share of prompt tokens, recent requests."),
    "pdd_inflight_requests": _gauge("Requests that were accepted and have not ended."),
    "pdd_ttft_seconds": _histogram("Submission to the first token at the client's side."),
    "pdd_second_token_seconds": _histogram("Submission to the second token."),
    "pdd_itl_seconds": _histogram("Between two tokens that follow each other."),
    "pdd_largest_gap_seconds": _histogram("The longest wait between two tokens of one request."),
    "pdd_e2e_seconds": _histogram("Submission to the last token."),
    # outputs and hand-over, at the workers
    "pdd_tokens_written_total": _counter("Outputs written, by the role that wrote them.", "role"),
    "pdd_prefix_hit_tokens_total": _counter("Prompt tokens found in this role's cache.", "role"),
    "pdd_handovers_total": _counter("Yields to MD, by policy.", "kind"),
    "pdd_ended_on_relay_total": _counter("Requests whose last token RLD wrote, by reason.", "reason"),
    "pdd_relay_paused_total": _counter("Requests that reached RLD's bound under load and wait for MD."),
    "pdd_relay_bound_lifted_total": _counter("Requests that RLD finished because no MD came in time."),
    "pdd_held_requests": _gauge("Requests that this worker holds something for."),
    "pdd_leases_expired_total": _counter("Requests given up because no router renewed them."),
    "pdd_pages_free": _gauge("KV pages that hold nothing anyone needs."),
    "pdd_pages_total": _gauge("KV pages of the pool."),
    # KV on its way
    "pdd_kv_bytes_total": _counter("KV payload that arrived whole, by way.", "way"),
    "pdd_kv_transfer_seconds": _histogram("First byte to last answer of a transfer.", "way"),
    "pdd_kv_frames_dropped_total": _counter("KV frames refused by the receiver.", "reason"),
    "pdd_kv_damaged_total": _counter("Transfers that had to be asked for again.", "reason"),
    "pdd_transfers_failed_total": _counter("Transfers whose connection was lost or refused.", "reason"),
    "pdd_staging_bytes": _gauge("Memory reserved for KV that is not imported yet."),
    "pdd_staging_refused_total": _counter("Transfers that found no staging memory and ask again."),
    "pdd_line_bytes_per_second": _gauge("Measured rate of the way to a site, bytes per second.", "site"),
    "pdd_line_rtt_seconds": _gauge("Measured round trip to a site.", "site"),
    "pdd_line_capacity_bytes_per_second": _gauge("The most that the way to a site carried lately.", "site"),
    "pdd_line_pace_bytes_per_second": _gauge("What bulk to a site is held to; 0: it is not.", "site"),
    "pdd_line_queue_seconds": _gauge("What a byte waits on the way to a site, beyond the round trip.", "site"),
    "pdd_line_queued_bytes": _gauge("KV offered for a site and not answered.", "site"),
    "pdd_line_loss_ratio": _gauge("Share of segments to a site that were sent again.", "site"),
    "pdd_line_streams": _gauge("KV connections to a site that stand.", "site"),
    "pdd_line_leases_total": _counter("Leases that the router gave of the line to a site.", "site"),
    "pdd_line_packed_ratio": _gauge("Bytes of KV for each byte that crosses to a site.", "site"),
    "pdd_kv_connections": _gauge("Connections that bring KV here."),
    "pdd_kv_connections_lost_total": _counter("KV connections to a site that ended while they were used.", "site"),
    # bus, index, telemetry
    "pdd_messages_dropped_total": _counter("Messages that came and did not fit.", "reason"),
    "pdd_bus_dropped_total": _counter("Messages that the bus could not send or read.", "reason"),
    "pdd_index_gaps_total": _counter("Gaps seen in a worker's numbered block changes."),
    "pdd_index_lookups_total": _counter("Prefix lookups, by how they ended.", "outcome"),
    "pdd_prefix_store_failures_total": _counter("Calls that the prefix store did not carry out.", "call"),
    "pdd_spans_dropped_total": _counter("Spans that were not exported."),
}

SPANS: dict[str, str] = {
    "request": "The router's: submission to the last token.",
    "route": "Looking up prefixes and choosing a pipeline.",
    "queue": "P has the request, and computes for others.",
    "prefill": "All of the prompt's computation at one worker.",
    "prefill.chunk": "One step's share of it.",
    "kv.transfer": "KV on its way to one receiver.",
    "relay": "RLD writes.",
    "handover": "From MD holding the prompt until RLD has yielded.",
    "extend": "MD computes over outputs written elsewhere, up to its own first token.",
    "main": "MD writes.",
}

KINDS: dict[type[Count | Gauge | Observe], Kind] = {
    Count: Kind.COUNTER,
    Gauge: Kind.GAUGE,
    Observe: Kind.HISTOGRAM,
}


def check(note: Count | Gauge | Observe | Span) -> None:
    """Raises ValueError where the tables have no such span, or no such metric of this kind and with these labels."""
    if isinstance(note, Span):
        if note.name not in SPANS:
            raise ValueError(f"core/names.py has no span {note.name!r}")
        return
    kind, labels, metric = KINDS[type(note)], tuple(name for name, _ in note.labels), METRICS.get(note.name)
    if metric is None:
        raise ValueError(f"core/names.py has no metric {note.name!r}")
    if (metric.kind, metric.labels) != (kind, labels):
        raise ValueError(f"{note.name} is a {metric.kind} with labels {metric.labels}, not a {kind} with {labels}")
