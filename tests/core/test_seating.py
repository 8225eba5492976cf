"""Seats where pages run out: somebody goes on, and the search for who may ends."""

import pytest

from pdd.core.batch import Batch, Limits
from pdd.core.effects import OpenSequence, Speak
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.member import Import
from pdd.core.sampling import Sampling
from pdd.core.steps import Sampled, StepResult

SHARED = list(range(1000, 1128))  # eight pages


def opened(batch: Batch, name: str, ids: list[int], *, compute: bool) -> Key:
    key = Key(RequestId(name), Epoch(1))
    batch.open(OpenSequence(key, tuple(ids), len(ids), Sampling(max_tokens=100), "", compute_last=compute))
    if compute:
        batch.speak(Speak(key))
    return key


def steps(batch: Batch, count: int) -> int:
    """Outputs written in so many pieces of work; fewer where there is none."""
    written = 0
    for _ in range(count):
        work = batch.next_work()
        if work is None:
            break
        if isinstance(work, Import):
            batch.finish_import(work, written=True)
        else:
            drawn = tuple(Sampled(7) for piece in work.slices if piece.sample)
            written += len(batch.finish_step(work, StepResult(drawn, 0.01), 0.0).written)
    return written


@pytest.mark.timeout(20)
def test_an_import_that_finds_no_pages_pins_nothing_while_it_waits() -> None:
    """Its cached prefix is what the running sequence needs: pinned anew at each look, it would never be had."""
    batch = Batch(Limits(pages=24, page_size=16, max_sequences=8, max_context=4096), "f")
    first = opened(batch, "first", SHARED, compute=True)
    steps(batch, 1)
    batch.close(first)  # its eight pages stay in the cache
    opened(batch, "writer", list(range(240)), compute=True)
    receiver = opened(batch, "receiver", SHARED + list(range(5000, 5084)), compute=False)
    assert isinstance(batch.begin_import(receiver, 128, 212), Import)
    assert steps(batch, 30) >= 28  # past its 256th token, where the writer needs a page of the cache


def test_an_import_comes_in_when_the_writer_has_gone() -> None:
    batch = Batch(Limits(pages=24, page_size=16, max_sequences=8, max_context=4096), "f")
    steps(batch, 1)
    writer = opened(batch, "writer", list(range(240)), compute=True)
    receiver = opened(batch, "receiver", list(range(5000, 5212)), compute=False)
    batch.begin_import(receiver, 0, 212)
    steps(batch, 5)
    batch.close(writer)
    steps(batch, 2)
    assert batch.sequence(receiver).computed == 212
