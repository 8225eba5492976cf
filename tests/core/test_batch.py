"""The batch, one rule at a time: who gets pages, whose turn it is, what counts when things happen during a step."""

from dataclasses import replace

from pdd.core.batch import SHORT_STEPS, Batch, Limits
from pdd.core.effects import AppendIds, OpenSequence, Speak
from pdd.core.events import StepDone
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.member import Import
from pdd.core.sampling import Sampling
from pdd.core.steps import Sampled, StepPlan, StepResult

LIMITS = Limits(pages=12, page_size=4, max_sequences=6, max_context=1000, chunk_tokens=8)


def opened(batch: Batch, name: str, ids: list[int], max_tokens: int = 100) -> Key:
    key = Key(RequestId(name), Epoch(1))
    batch.open(OpenSequence(key, tuple(ids), len(ids), Sampling(max_tokens), "", True))
    batch.speak(Speak(key))
    return key


def step(batch: Batch, token: int = 1) -> StepDone:
    plan = batch.next_work()
    assert isinstance(plan, StepPlan)
    sampled = tuple(Sampled(token) for piece in plan.slices if piece.sample)
    return batch.finish_step(plan, StepResult(sampled, 0.1), 0.0)


def test_where_pages_run_out_the_youngest_waits_and_the_eldest_goes_on() -> None:
    batch = Batch(LIMITS, "weights")
    old, young = opened(batch, "old", [1] * 20), opened(batch, "young", [2] * 20)
    while batch.sequence(young).pages or not batch.sequence(old).outputs:
        step(batch)
    assert len(batch.sequence(old).pages) == 7, "five and one for each, then the seventh"
    assert (batch.sequence(young).computed, batch.load().running) == (0, 2)
    batch.close(old)
    step(batch)
    assert batch.sequence(young).computed >= 20, "most of it was still cached"


def test_an_output_that_came_from_elsewhere_during_the_step_counts() -> None:
    batch = Batch(LIMITS, "weights")
    key = opened(batch, "a", [1] * 5)
    plan = batch.next_work()
    assert isinstance(plan, StepPlan) and plan.slices[0].sample
    batch.append_ids(AppendIds(key, 0, (9,)))
    assert batch.finish_step(plan, StepResult((Sampled(3),), 0.1), 0.0).written == ()
    assert batch.sequence(key).ids[5:] == [9]


def test_many_with_the_same_prompt_compute_it_once() -> None:
    batch = Batch(LIMITS, "weights")
    keys = [opened(batch, name, [1] * 16 + [n]) for n, name in enumerate("abc")]
    computed = 0
    while not all(batch.sequence(key).outputs for key in keys):
        plan = batch.next_work()
        assert isinstance(plan, StepPlan)
        computed += sum(piece.stop - piece.start for piece in plan.slices if piece.start < 17)
        batch.finish_step(plan, StepResult(tuple(Sampled(1) for piece in plan.slices if piece.sample), 0.1), 0.0)
    assert computed <= 17 + 2 * (1 + LIMITS.chunk_tokens)


def test_pages_of_a_running_sequence_are_given_back_when_its_step_ends() -> None:
    batch = Batch(LIMITS, "weights")
    key = opened(batch, "a", [1] * 5)
    plan = batch.next_work()
    assert isinstance(plan, StepPlan)
    batch.close(key)
    assert batch.pool.free == LIMITS.pages - 2
    done = batch.finish_step(plan, StepResult((Sampled(3),), 0.1), 0.0)
    assert (done.computed, done.written, batch.pool.free) == ((), (), LIMITS.pages)


def test_a_start_leaves_a_page_for_each_that_writes_already() -> None:
    batch = Batch(LIMITS, "weights")
    writer = opened(batch, "writer", [1] * 16)
    for _ in range(3):
        step(batch)
    assert batch.pool.free == 7
    opened(batch, "late", [2] * 28)
    for _ in range(3):
        plan = batch.next_work()
        assert isinstance(plan, StepPlan) and [piece.sequence.key for piece in plan.slices] == [writer]
        batch.finish_step(plan, StepResult((Sampled(1),), 0.1), 0.0)


def test_pages_go_to_the_import_that_came_before_the_prefill() -> None:
    batch = Batch(LIMITS, "weights")
    holder = opened(batch, "holder", [1] * 40, max_tokens=1)
    step_until_idle(batch)
    receiver = Key(RequestId("receiver"), Epoch(1))
    batch.open(OpenSequence(receiver, (2,) * 20, 20, Sampling(5), "", False))
    late = opened(batch, "late", [3] * 8)
    assert isinstance(batch.begin_import(receiver, 0, 20), Import)
    assert batch.next_work() is None, "two pages are free: the prefill would fit, but it is not its turn"
    batch.close(holder)
    assert isinstance(batch.next_work(), Import) and not batch.sequence(late).computed


def test_imports_and_steps_take_turns() -> None:
    batch = Batch(LIMITS, "weights")
    opened(batch, "speaker", [1] * 5)
    for name in ("a", "b"):
        key = Key(RequestId(name), Epoch(1))
        batch.open(OpenSequence(key, (2,) * 8, 8, Sampling(5), "", False))
        batch.begin_import(key, 0, 8)
    kinds = []
    for _ in range(4):
        work = batch.next_work()
        kinds.append(type(work))
        if isinstance(work, Import):
            batch.finish_import(work, written=True)
        elif work is not None:
            batch.finish_step(work, StepResult((Sampled(1),), 0.1), 0.0)
    assert kinds == [Import, StepPlan, Import, StepPlan]


def test_hand_overs_one_upon_another_leave_every_fifth_step_to_others() -> None:
    batch = Batch(replace(LIMITS, pages=99), "weights")
    shadowed = Key(RequestId("shadowed"), Epoch(1))
    batch.open(OpenSequence(shadowed, (1,) * 8, 8, Sampling(99), "", False))
    staged = batch.begin_import(shadowed, 0, 8)
    assert isinstance(staged, Import) and batch.next_work() is staged
    batch.finish_import(staged, written=True)
    new = opened(batch, "new", [2] * 30)
    computed = []
    for index in range(2 * (SHORT_STEPS + 1)):
        batch.append_ids(AppendIds(shadowed, batch.sequence(shadowed).outputs, (5,) if index else (5, 5)))
        step(batch)
        computed.append(batch.sequence(new).computed)
    assert computed == [0] * SHORT_STEPS + [7] * (SHORT_STEPS + 1) + [14]


def step_until_idle(batch: Batch) -> None:
    while plan := batch.next_work():
        assert isinstance(plan, StepPlan)
        batch.finish_step(plan, StepResult(tuple(Sampled(1) for piece in plan.slices if piece.sample), 0.1), 0.0)


def test_what_a_close_gives_back_is_told_though_no_step_follows() -> None:
    batch = Batch(LIMITS, "weights")
    keys = [opened(batch, name, [i] * 20) for i, name in enumerate(("a", "b"))]
    assert step(batch).load.waiting_tokens > 0
    for key in keys:
        batch.close(key)
    assert batch.next_work() is None
    told = batch.flush(0.0)
    assert told is not None
    assert (told.load.running, told.load.waiting_tokens, told.load.free_pages) == (0, 0, LIMITS.pages)
    assert batch.flush(0.0) is None, "nothing changed since"
