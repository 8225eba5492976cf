#!/usr/bin/env python3
"""Writes dashboards/pdd.json: `python3 infra/grafana/dashboard.py`. A test compares the file with this, and each query with the code.

Rows are an operator's questions, in the order in which they are asked.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_name("dashboards") / "pdd.json"
WIDTH, HEIGHT, COLUMNS = 8, 7, 24
RATE = "[$__rate_interval]"
MIXED = {"type": "datasource", "uid": "-- Mixed --"}


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str
    site: str = "a"


@dataclass(frozen=True)
class Panel:
    title: str
    says: str
    unit: str
    queries: tuple[Query, ...]


def quantiles(metric: str, where: str = "") -> tuple[Query, ...]:
    return tuple(
        Query(f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket{where}{RATE})))", f"p{share * 100:g}")
        for share in (0.5, 0.9, 0.99)
    )


def rate_by(metric: str, label: str, *sites: str, what: str = "") -> tuple[Query, ...]:
    legend = f"{what} {{{{{label}}}}}".strip()
    return tuple(Query(f"sum by ({label}) (rate({metric}{RATE}))", legend, site) for site in sites or "a")


def each(metric: str, site: str = "a") -> tuple[Query, ...]:
    return (Query(f"sum by (instance) ({metric})", "{{instance}}", site),)


def both(expr: str, legend: str) -> tuple[Query, ...]:
    return Query(expr, legend, "a"), Query(expr, legend, "b")


ROWS: dict[str, tuple[Panel, ...]] = {
    "Are clients fine?": (
        Panel("First token", "Submission to the first token.", "s", quantiles("pdd_ttft_seconds")),
        Panel("Second token", "A slow transfer shows here.", "s", quantiles("pdd_second_token_seconds")),
        Panel("Longest pause", "A hand-over, a replan or a full batch.", "s", quantiles("pdd_largest_gap_seconds")),
        Panel("Between two tokens", "What a reader feels.", "s", quantiles("pdd_itl_seconds")),
        Panel("Whole answer", "Submission to the last token.", "s", quantiles("pdd_e2e_seconds")),
        Panel("Requests that ended", "By how they ended.", "reqps", rate_by("pdd_requests_total", "outcome")),
        Panel(
            "Requests under way",
            "Accepted and not ended.",
            "short",
            (Query("sum(pdd_inflight_requests)", "under way"),),
        ),
    ),
    "Is the line the limit?": (
        Panel(
            "Line to site B",
            "What P measures, and what KV it carries: equal means full.",
            "bps",
            (
                Query('max(pdd_line_bytes_per_second{site="b"}) * 8', "measured"),
                Query('max(pdd_line_capacity_bytes_per_second{site="b"}) * 8', "the most, lately"),
                Query(f'sum(rate(pdd_kv_bytes_total{{way="wan"}}{RATE})) * 8', "carried"),
                Query('sum(pdd_line_pace_bytes_per_second{site="b"}) * 8', "bulk held to (0: free)"),
            ),
        ),
        Panel("KV waiting for the line", "Offered and not answered.", "bytes", each('pdd_line_queued_bytes{site="b"}')),
        Panel(
            "Transfers to site B",
            "First byte to last answer.",
            "s",
            quantiles("pdd_kv_transfer_seconds", '{way="wan"}'),
        ),
        Panel(
            "Round trip",
            "Measured by each P; the queue comes on top.",
            "s",
            (
                Query("max by (site) (pdd_line_rtt_seconds)", "to {{site}}"),
                Query("max by (site) (pdd_line_queue_seconds)", "queue to {{site}}"),
            ),
        ),
        Panel(
            "Loss and packing",
            "Share of segments sent again; bytes of KV for each that crosses.",
            "short",
            (
                Query("max by (site) (pdd_line_loss_ratio)", "loss to {{site}}"),
                Query("max by (site) (pdd_line_packed_ratio)", "packed to {{site}}"),
            ),
        ),
        Panel(
            "KV connections",
            "To each site, at each receiver; lost in use, and leases of the line, a second.",
            "short",
            (
                Query("sum by (site) (pdd_line_streams)", "to {{site}}"),
                *each("pdd_kv_connections", "b"),
                *rate_by("pdd_kv_connections_lost_total", "site", what="lost to"),
                *rate_by("pdd_line_leases_total", "site", what="leases to"),
            ),
        ),
        Panel(
            "Transfers that broke",
            "Lost or refused connections; and what had to be asked for again.",
            "short",
            (
                *rate_by("pdd_transfers_failed_total", "reason"),
                *rate_by("pdd_kv_damaged_total", "reason", "a", "b", what="asked again:"),
            ),
        ),
        Panel("KV waiting for import at B", "Refused when it is full.", "bytes", each("pdd_staging_bytes", "b")),
        Panel(
            "Transfers cut",
            "Singular traffic: RLD was first. Withheld: cut would have been right, but MD must learn.",
            "short",
            (*rate_by("pdd_cuts_total", "kind"), *rate_by("pdd_cuts_withheld_total", "reason", what="withheld:")),
        ),
    ),
    "Is RLD overloaded?": (
        Panel(
            "Who writes",
            "Tokens by role. RLD masks delay: a few percent are right.",
            "short",
            rate_by("pdd_tokens_written_total", "role", "a", "b"),
        ),
        Panel(
            "KV pages in use",
            "Share of each worker's pool.",
            "percentunit",
            both("1 - pdd_pages_free / (pdd_pages_total > 0)", "{{service}} {{instance}}"),
        ),
        Panel("Requests held", "At each worker.", "short", both("pdd_held_requests", "{{service}} {{instance}}")),
        Panel("Hand-overs", "By policy.", "short", rate_by("pdd_handovers_total", "kind")),
        Panel(
            "RLD at its bound",
            "Paused: waits for MD. Lifted: no MD came, RLD finished.",
            "short",
            (
                Query(f"sum(rate(pdd_relay_paused_total{RATE}))", "paused"),
                Query(f"sum(rate(pdd_relay_bound_lifted_total{RATE}))", "lifted"),
            ),
        ),
        Panel("Ended on RLD", "MD does not learn these.", "short", rate_by("pdd_ended_on_relay_total", "reason")),
    ),
    "Are the caches aligned?": (
        Panel(
            "Gap between P's and MD's hits",
            "Share of prompt tokens. Growing means the feedback that must not start.",
            "percentunit",
            (Query("max(pdd_hit_gap_ratio)", "gap"),),
        ),
        Panel(
            "Hits at P and at MD",
            "Share of prompt tokens, of recent requests that went to both.",
            "percentunit",
            (Query("avg by (role) (pdd_hit_ratio)", "{{role}}"),),
        ),
        Panel(
            "Warm-ups",
            "Prompts that RLD ended alone and MD learned afterwards; or gave up, for want of time or room.",
            "short",
            rate_by("pdd_warm_ups_total", "outcome"),
        ),
        Panel(
            "Prompt tokens found",
            "By the role whose cache had them; and all prompt tokens.",
            "short",
            (
                *rate_by("pdd_prefix_hit_tokens_total", "role", "a", "b"),
                Query(f"sum(rate(pdd_prompt_tokens_total{RATE}))", "asked"),
            ),
        ),
        Panel(
            "Prefix index",
            "Lookups by outcome; gaps in what workers say; calls that Redis did not carry out.",
            "short",
            (
                *rate_by("pdd_index_lookups_total", "outcome"),
                Query(f"sum(rate(pdd_index_gaps_total{RATE}))", "gaps"),
                *rate_by("pdd_prefix_store_failures_total", "call"),
            ),
        ),
    ),
    "What is refused, and why?": (
        Panel("Refused", "Before anything was done.", "short", rate_by("pdd_requests_refused_total", "reason")),
        Panel(
            "Workers of another model",
            "Never paired, by the field that differs.",
            "short",
            (Query(f"sum by (worker, field) (rate(pdd_workers_refused_total{RATE}))", "{{worker}}: {{field}}"),),
        ),
        Panel("Routes", "Chosen by predicted seconds.", "short", rate_by("pdd_routes_total", "route")),
        Panel("Planned again", "A worker was lost or stood still.", "short", rate_by("pdd_replans_total", "reason")),
        Panel(
            "Dropped at the bus",
            "Not sent, not read, or not fitting.",
            "short",
            (
                *rate_by("pdd_bus_dropped_total", "reason", "a", "b"),
                *rate_by("pdd_messages_dropped_total", "reason", "a", "b"),
            ),
        ),
        Panel(
            "Dropped at the KV link and the router",
            "Frames refused by a receiver; tokens that were not the next ones.",
            "short",
            (
                *rate_by("pdd_kv_frames_dropped_total", "reason", "a", "b"),
                *rate_by("pdd_tokens_dropped_total", "reason"),
            ),
        ),
        Panel(
            "Given up",
            "Leases nobody renewed; transfers without staging memory; spans that did not leave.",
            "short",
            tuple(
                Query(f"sum(rate({metric}{RATE}))", f"{what} at {site.upper()}", site)
                for metric, what in (
                    ("pdd_leases_expired_total", "leases"),
                    ("pdd_staging_refused_total", "staging"),
                    ("pdd_spans_dropped_total", "spans"),
                )
                for site in "ab"
            ),
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for question, row in ROWS.items():
        panels.append(_row(question, len(panels) + 1, top))
        top += 1
        for i, panel in enumerate(row):
            left, down = i * WIDTH % COLUMNS, i * WIDTH // COLUMNS * HEIGHT
            panels.append(_panel(panel, len(panels) + 1, left, top + down))
        top += -(-len(row) * WIDTH // COLUMNS) * HEIGHT
    return {
        "uid": "pdd",
        "title": "PDD",
        "tags": ["pdd"],
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "schemaVersion": 39,
        "editable": False,
        "panels": panels,
    }


def _row(title: str, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says,
        "datasource": MIXED,
        "gridPos": {"x": left, "y": top, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": {"type": "prometheus", "uid": f"pdd-{query.site}"},
                "expr": query.expr,
                "legendFormat": query.legend,
            }
            for i, query in enumerate(panel.queries)
        ],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    OUT.write_text(text())
