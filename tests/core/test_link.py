"""The estimator against a line whose rate and delay we know: a queue that serves bytes at a rate, then a round trip."""

import math
import random

import pytest

from pdd.core.link import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, LinkEstimator

KB, MB = 1 << 10, 1 << 20


class Pipe:
    """Serves in order at `rate`; an answer comes `rtt` after a chunk's last byte was served."""

    def __init__(self, rate: float, rtt: float) -> None:
        self.rate, self.rtt, self.free_at = rate, rtt, 0.0

    def answered_at(self, size: int, now: float) -> float:
        self.free_at = max(self.free_at, now) + size / self.rate
        return self.free_at + self.rtt


def send(link: LinkEstimator, pipe: Pipe, sizes: list[int], now: float, window: int = 2) -> float:
    """All chunks, at most `window` of them unanswered. Returns the time of the last answer."""
    waiting: list[tuple[float, float, int]] = []
    for size in sizes:
        if len(waiting) == window:
            now = _answer(link, waiting)
        link.on_offered(size)
        link.on_sent(size, now)
        waiting.append((pipe.answered_at(size, now), now, size))
    while waiting:
        now = _answer(link, waiting)
    return now


def _answer(link: LinkEstimator, waiting: list[tuple[float, float, int]]) -> float:
    at, sent_at, size = waiting.pop(0)
    link.on_acked(size, sent_at, at)
    return at


@pytest.mark.parametrize("rtt", [0.0005, 0.05, 0.2])
@pytest.mark.parametrize("rate", [125e3, 2.5e6, 60e6])
def test_bulk_finds_the_rate_of_the_line(rate: float, rtt: float) -> None:
    link, pipe = LinkEstimator("b"), Pipe(rate, rtt)
    link.on_round_trip(rtt)
    now = send(link, pipe, [256 * KB] * 40, now=1.0, window=8)
    assert link.bytes_per_s(now) == pytest.approx(rate, rel=0.02)
    assert link.queued_bytes == link.inflight_bytes == 0


def test_waiting_for_prefill_is_not_the_lines_time() -> None:
    link, pipe, now = LinkEstimator("b"), Pipe(2.5e6, 0.05), 1.0
    link.on_round_trip(0.05)
    for _ in range(10):
        now = send(link, pipe, [500 * KB], now) + 3.0
    assert link.bytes_per_s(now) == pytest.approx(2.5e6, rel=0.02)
    for _ in range(10):
        now = send(link, pipe, [500 * KB], now) + 3.0
    assert link.capacity.bytes_per_s == pytest.approx(2.5e6, rel=0.02)


def test_a_small_window_on_a_long_line_is_not_taken_for_a_slow_line() -> None:
    link, pipe = LinkEstimator("b"), Pipe(60e6, 0.1)
    link.on_round_trip(0.1)
    now = send(link, pipe, [128 * KB] * 20, now=1.0)
    assert link.bytes_per_s(now) > 50e6


def test_a_line_that_became_slower_is_noticed_within_seconds() -> None:
    link, pipe = LinkEstimator("b"), Pipe(10e6, 0.05)
    link.on_round_trip(0.05)
    now = send(link, pipe, [MB] * 40, now=0.0)
    pipe.rate = 1e6
    now = send(link, pipe, [256 * KB] * 24, now)
    assert link.bytes_per_s(now) == pytest.approx(1e6, rel=0.35)


def test_a_line_that_became_faster_is_noticed_within_seconds() -> None:
    link, pipe = LinkEstimator("b"), Pipe(1e6, 0.05)
    link.on_round_trip(0.05)
    now = send(link, pipe, [256 * KB] * 24, now=0.0)
    pipe.rate = 10e6
    began = now
    now = send(link, pipe, [MB] * 60, now)
    assert link.bytes_per_s(now) == pytest.approx(10e6, rel=0.2)
    assert now - began < 7


def test_a_silent_line_gets_slower_with_every_second_of_silence() -> None:
    link, pipe = LinkEstimator("b"), Pipe(2e6, 0.05)
    link.on_round_trip(0.05)
    now = send(link, pipe, [200 * KB] * 10, now=0.0)
    idle = link.bytes_per_s(now + 30)
    link.on_sent(200 * KB, now + 30)
    rates = [link.bytes_per_s(now + 30 + silent) for silent in (0, 1, 5, 20)]
    assert idle == rates[0] == pytest.approx(2e6, rel=0.02)
    assert rates == sorted(rates, reverse=True) and rates[-1] < rates[0] / 8


def test_an_answers_delay_bounds_the_round_trip() -> None:
    link = LinkEstimator("b")
    link.on_round_trip(0.4)  # the first greeting met a queue
    link.on_offered(KB)
    link.on_sent(KB, 1.0)
    link.on_acked(KB, 1.0, 1.1)
    assert link.rtt_s == pytest.approx(0.1)
    for _ in range(4):
        link.on_round_trip(0.2)
    assert link.rtt_s == pytest.approx(0.2)  # a longer way is believed after a few


def test_eta_counts_the_queue_and_is_infinite_before_anything_is_measured() -> None:
    link, pipe = LinkEstimator("b"), Pipe(1e6, 0.05)
    assert link.eta(MB, 0.0) == math.inf
    link.on_round_trip(0.05)
    now = send(link, pipe, [100_000] * 20, now=0.0)
    assert link.eta(1_000_000, now) == pytest.approx(1.05, rel=0.05)
    link.on_offered(1_000_000)
    assert link.eta(1_000_000, now) == pytest.approx(2.05, rel=0.05)
    link.on_withdrawn(1_000_000)
    assert link.eta(1_000_000, now) == pytest.approx(1.05, rel=0.05)


def test_chunks_take_about_a_tenth_of_a_second_within_bounds() -> None:
    for rate, size in ((10e3, CHUNK_BYTES_MIN), (5e6, 500_000), (1e9, CHUNK_BYTES_MAX)):
        link = LinkEstimator("b")
        link.on_round_trip(0.05)
        now = send(link, Pipe(rate, 0.05), [100_000] * 30, now=0.0, window=30)
        assert link.chunk_bytes(now) == pytest.approx(size, rel=0.05)


def test_the_window_holds_what_the_line_holds_twice_and_two_chunks() -> None:
    link = LinkEstimator("b")
    assert link.window_bytes(0.0) == 2 * link.chunk_bytes(0.0)
    link.on_round_trip(0.05)
    now = send(link, Pipe(5e6, 0.05), [100_000] * 30, now=0.0, window=30)
    assert link.window_bytes(now) == pytest.approx(2 * 5e6 * 0.05 + 2 * 500_000, rel=0.05)


def test_reports_come_a_few_times_a_second_and_when_the_queue_has_emptied() -> None:
    link = LinkEstimator("b")
    link.on_offered(100)
    first = link.report(1.0)
    assert first and (first.site, first.queued_bytes) == ("b", 100)
    link.on_sent(100, 1.0)
    assert link.report(1.1) is None
    link.on_acked(100, 1.0, 1.12)
    emptied = link.report(1.12)
    assert emptied and emptied.queued_bytes == 0
    assert link.report(1.13) is None


@pytest.mark.parametrize("seed", range(5))
def test_jitter_of_answers_moves_the_rate_little(seed: int) -> None:
    rng, link, pipe, now = random.Random(seed), LinkEstimator("b"), Pipe(2.5e6, 0.05), 0.0
    link.on_round_trip(0.05)
    for _ in range(60):
        size = rng.choice([64 * KB, 128 * KB])
        link.on_offered(size)
        link.on_sent(size, now)
        at = pipe.answered_at(size, now) + rng.expovariate(1 / 0.002)
        link.on_acked(size, now, at)
        now = at
    assert link.bytes_per_s(now) == pytest.approx(2.5e6, rel=0.15)
