"""Who has measured nothing is taken for the average of its kind, and who has is left alone."""

from hypothesis import given
from hypothesis import strategies as st

from pdd.core.ids import Peer, Role
from pdd.core.messages import EngineLoad, LineState, WorkerCard
from pdd.core.newcomers import informed
from pdd.core.routing import Candidate

CARD = WorkerCard("f", 8192, 8, 16)


def p(name: str, rate: float = 0.0, *lines: LineState, site: str = "a", step_s: float = 0.0) -> Candidate:
    load = EngineLoad(prefill_tokens_per_s=rate, step_s=step_s)
    return Candidate(Peer(site, Role.PREFILL, name, 1), CARD, load, {line.site: line for line in lines})


def test_a_newcomer_has_the_rate_and_the_lines_of_its_kind() -> None:
    slow, quick = LineState("b", 1e6, 0.05, 7000), LineState("b", 3e6, 0.07, 0)
    found = informed([p("p1", 1000.0, slow, step_s=0.02), p("p2", 3000.0, quick), p("p3")])
    assert [one.load.prefill_tokens_per_s for one in found] == [1000.0, 3000.0, 2000.0]
    assert [one.load.step_s for one in found] == [0.02, 0.02, 0.02]
    line = found[2].lines["b"]
    assert (line.bytes_per_s, line.queued_bytes) == (2e6, 0) and abs(line.rtt_s - 0.06) < 1e-9
    assert (found[0].lines["b"], found[1].lines["b"]) == (slow, quick)


def test_lines_of_another_site_say_nothing() -> None:
    found = informed([p("p1", 1000.0, LineState("b", 1e6, 0.05, 0)), p("p2", site="c")])
    assert found[1].lines == {}


def test_where_nobody_has_measured_the_priors_stand_in() -> None:
    assert informed([p("p1"), p("p2")]) == [p("p1"), p("p2")]
    assert informed([]) == []


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=8))
def test_nobody_is_taken_for_better_than_the_best_or_worse_than_the_worst(rates: list[float]) -> None:
    found = [one.load.prefill_tokens_per_s for one in informed([p(f"p{i}", rate) for i, rate in enumerate(rates)])]
    known = [rate for rate in rates if rate]
    for rate, taken in zip(rates, found, strict=True):
        assert taken == rate if rate else not known or min(known) * 0.999 <= taken <= max(known) * 1.001
