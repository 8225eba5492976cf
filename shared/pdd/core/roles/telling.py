"""What the router tells of a request: its report, its spans, its latencies. TTFT is measured here and nowhere else."""

from itertools import pairwise

from ..effects import Count, Effect, Observe, Span
from ..ids import Peer
from ..messages import KvDelivered
from ..routing import Route
from .course import Course


def explain(course: Course, found: list[Route]) -> None:
    """Write the chosen route, its terms and its best rivals into the report."""
    route, report = found[0], course.report
    report.route, report.terms, report.epochs = route.name, dict(route.terms), course.epoch
    report.others = {other.name: other.seconds for other in reversed(found[1:]) if other.name != route.name}
    report.workers = {role.value: peer.name for role, peer in course.cast.items()}


def delivered(course: Course, prefill: Peer, message: KvDelivered) -> None:
    """Write a finished transfer into the report."""
    receiver = message.receiver
    course.delivered |= receiver == course.named.main
    way = "near" if receiver.site == prefill.site else "wan"
    told: dict[str, float | str] = {"to": receiver.role.value, "way": way, "tokens": message.tokens}
    course.report.transfers.append(told | {"bytes": message.payload_bytes, "seconds": message.seconds})


def route_span(course: Course, now: float) -> Span:
    report = course.report
    terms = tuple((f"pdd.predicted.{name}_s", round(value, 6)) for name, value in report.terms.items())
    return Span("route", course.asked.traceparent, course.submitted_at, now, (("pdd.route", report.route), *terms))


def request_span(course: Course, outcome: str, now: float) -> Span:
    attributes: dict[str, str | int | float] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": len(course.asked.ids),
        "gen_ai.usage.output_tokens": len(course.out),
        "gen_ai.response.finish_reasons": outcome,
        "pdd.request": course.request,
        "pdd.route": course.report.route,
        "pdd.epochs": course.epoch,
    }
    asked, told = course.asked, tuple(attributes.items())
    return Span("request", asked.traceparent, course.submitted_at, now, told, root=True, parent=asked.parent_span)


def measured(course: Course, now: float) -> list[Effect]:
    at = course.report.token_at_s
    effects: list[Effect] = [
        Observe("pdd_ttft_seconds", at[0]),
        Observe("pdd_e2e_seconds", now - course.submitted_at),
        Count("pdd_prompt_tokens_total", (), len(course.asked.ids)),
    ]
    if len(at) > 1:
        gaps = [later - earlier for earlier, later in pairwise(at)]
        effects.append(Observe("pdd_second_token_seconds", at[1]))
        effects.append(Observe("pdd_largest_gap_seconds", max(gaps)))
        effects += [Observe("pdd_itl_seconds", gap) for gap in gaps]
    return effects
