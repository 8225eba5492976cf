"""Numbers of a run: percentiles, rates, shares. Plain JSON data."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from .records import Record, Run

SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)
HIT_EDGES = (0.0, 0.5, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99)  # the bins of the public agent traces, and below


def percentile(ordered: list[float], share: float) -> float:
    """Linear between the two nearest ranks of an ascending list."""
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread(values: Iterable[float | None]) -> dict[str, float]:
    """Mean, percentiles and extreme; empty where there is no value."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return {}
    found = {"n": len(known), "mean": sum(known) / len(known)}
    found |= {_name(share): percentile(known, share) for share in SHARES}
    return found | {"max": known[-1]}


def _name(share: float) -> str:
    return f"p{share * 100:g}"


def counted(run: Run) -> list[Record]:
    return [record for record in run.records if record.intended_s >= run.warmup_s]


def summarize(run: Run) -> dict[str, Any]:
    records = counted(run)
    good = [record for record in records if not record.error]
    ends = [record.last_s for record in good if record.last_s is not None]
    # Open loops go on after the last arrival until all have ended: rates count up to the last arrival.
    seconds = max(1e-9, min(run.seconds, max((r.intended_s for r in records), default=0.0)) - run.warmup_s)
    done = sum(end <= run.warmup_s + seconds for end in ends)
    written = sum(record.outputs for record in good)
    return {
        "title": run.title,
        "facts": run.facts,
        "requests": len(records),
        "failed": len(records) - len(good),
        "errors": dict(Counter(record.error for record in records if record.error).most_common(10)),
        "seconds": seconds,
        "requests_per_s": len(records) / seconds,
        "completed_per_s": done / seconds,
        "outputs": written,
        "outputs_per_s": written / seconds,
        "prompt_tokens": sum(record.prompt for record in good),
        "ttft_s": spread(record.ttft_s for record in good),
        "second_token_s": spread(record.second_token_s for record in good),
        "tpot_s": spread(record.tpot_s for record in good),
        "itl_s": {_name(share): value for share in SHARES if (value := run.gaps.percentile(share)) is not None},
        "largest_gap_s": spread(record.gap_s for record in good if record.outputs > 1),
        "e2e_s": spread(record.e2e_s for record in good),
        "session_s": spread(end - begin for _, begin, end, _ in _sessions(run)),
        "session_without_thinking_s": spread(end - begin - thought for _, begin, end, thought in _sessions(run)),
        "hit": _hits(good),
        "routes": dict(sorted(Counter(record.route for record in good if record.route).items())),
        "shares": _shares(good),
        "line": _line(good, seconds),
        "replanned": sum(record.epochs > 1 for record in good),
    }


def _sessions(run: Run) -> list[tuple[str, float, float, float]]:
    return [session for session in run.sessions if session[1] >= run.warmup_s]


def _hits(records: list[Record]) -> dict[str, Any]:
    """By role: token-weighted hit rate, and P's in bins."""
    roles = dict.fromkeys(role for record in records for role in record.hit)
    found: dict[str, Any] = {}
    for role in roles:
        known = [record for record in records if role in record.hit and record.prompt]
        prompt = sum(record.prompt for record in known)
        found[role] = sum(record.hit[role] for record in known) / prompt if prompt else 0.0
    if "prefill" in roles:
        rates = [r.hit["prefill"] / r.prompt for r in records if "prefill" in r.hit and r.prompt]
        found["bins"] = _bins(rates)
    return found


def _bins(rates: list[float]) -> dict[str, float]:
    edges = (*HIT_EDGES, 1.0001)
    names = [f"{low * 100:g}-{min(high, 1) * 100:g} %" for low, high in pairwise(edges)]
    counts = dict.fromkeys(names, 0)
    for rate in rates:
        counts[names[max(i for i, low in enumerate(HIT_EDGES) if rate >= low)]] += 1
    return {name: count / len(rates) for name, count in counts.items()} if rates else {}


def _shares(records: list[Record]) -> dict[str, float]:
    """Of outputs, by the role that wrote them."""
    written: Counter[str] = Counter()
    for record in records:
        written.update(record.shares)
    total = sum(written.values())
    return {role: count / total for role, count in sorted(written.items())} if total else {}


def _line(records: list[Record], seconds: float) -> dict[str, Any]:
    crossed = [record for record in records if record.wan_bytes]
    if not crossed:
        return {}
    total = sum(record.wan_bytes for record in crossed)
    return {
        "bytes": total,
        "bytes_per_s": total / seconds,
        "bytes_per_request": total / len(records),
        "transfers": len(crossed),
        "transfer_s": spread(record.wan_s for record in crossed),
    }
