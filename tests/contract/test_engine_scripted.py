"""What the scripted engine promises beyond the contract: its outputs are a function one can write down, its seconds a cost model's."""

import asyncio
from collections.abc import Callable

import pytest

from pdd.adapters.engine_scripted import SMALL_SHAPE, Script, ScriptedRunner, create_scripted, reference
from pdd.adapters.engine_steps import SteppingEngine
from pdd.core.batch import Batch
from pdd.core.cost import COSTS
from pdd.core.effects import OpenSequence, Speak
from pdd.core.events import Event, StepDone
from pdd.core.sampling import Finish, Sampling
from pdd.ports import KvChunk
from pdd.runtime.driver import LoopClock
from pdd.sim.world import World
from tests.contract.engines import COST, ENGINES, GREEDY, LIMITS, Rig, key

SCRIPTED = ENGINES["scripted"]


def test_one_engine_alone_writes_the_reference() -> None:
    rig = Rig(SCRIPTED)
    for tokens in (1, 2, 40, 333):
        ids = rig.prompt(tokens, tokens)
        assert rig.alone(ids, GREEDY) == reference(ids, GREEDY, tokens, Script())


def test_the_reference_goes_on_from_any_output_and_ends_at_limits_and_stop_tokens() -> None:
    ids = list(range(50))
    whole = reference(ids, GREEDY, 50, Script())
    assert whole[10:] == reference(ids + whole[:10], GREEDY, 50, Script())
    assert len(whole) == GREEDY.max_tokens
    stopping = Sampling(max_tokens=24, stop_token_ids=(whole[6],))
    assert reference(ids, stopping, 50, Script()) == whole[: whole.index(whole[6]) + 1]
    assert reference(ids, GREEDY, 50, Script(), max_context=60) == whole[:11]


def test_the_end_token_comes_about_as_often_as_asked_and_never_before_min_tokens() -> None:
    script = Script(mean_outputs=20)
    sampling = Sampling(max_tokens=2000, stop_token_ids=(script.end_token,))
    lengths = [len(reference([n, n + 1], sampling, 2, script)) for n in range(300)]
    assert 15 < sum(lengths) / len(lengths) < 25 and min(lengths) < 5
    patient = Sampling(max_tokens=2000, min_tokens=30, stop_token_ids=(script.end_token,))
    assert min(len(reference([n, n + 1], patient, 2, script)) for n in range(100)) == 31


def test_a_flipped_bit_anywhere_in_the_line_shows() -> None:
    rig = Rig(SCRIPTED)
    ids = rig.prompt(20)
    prefill = rig.desk()
    prefill.open("a", ids)
    prefill.speak("a", 1)
    rig.settle()
    (chunk,) = prefill.export("a", 0, 20)
    right = reference(ids, GREEDY, 20, Script())
    for at in range(0, chunk.data.nbytes, 37):
        data = bytearray(chunk.data)
        data[at] ^= 1
        main = rig.desk()
        main.open("a", ids, compute_last=False)
        main.take("a", [KvChunk(0, 20, chunk.shape, memoryview(data))])
        main.append("a", 0, right[:1])
        main.speak("a", 4)
        rig.settle()
        assert main.outputs("a") != right[1:4], at


def test_steps_take_the_seconds_of_the_cost_model() -> None:
    rig = Rig(SCRIPTED)
    desk = rig.desk()
    desk.open("a", rig.prompt(LIMITS.chunk_tokens))
    desk.speak("a", 3)
    rig.settle()
    seconds = [COST.step_s + LIMITS.chunk_tokens / COST.prefill_tokens_per_s, *[COST.step_s + COST.decode_s] * 2]
    starts = [sum(seconds[:n]) for n in range(3)]
    assert [step.started_at for step in desk.steps] == pytest.approx(starts)
    assert desk.engine.load().step_s == pytest.approx(COST.step_s + COST.decode_s)
    assert desk.engine.load().prefill_tokens_per_s == pytest.approx(LIMITS.chunk_tokens / seconds[0])


def test_logprobs_come_along_when_asked() -> None:
    rig = Rig(SCRIPTED)
    desk = rig.desk()
    desk.open("a", rig.prompt(10), Sampling(max_tokens=2, logprobs=3))
    desk.speak("a")
    rig.settle()
    for part in desk.written("a"):
        assert [len(one.top) for one in part.logprobs] == [3]
        assert part.logprobs[0].top[0] == (part.ids[0], part.logprobs[0].chosen)


class Interrupted(ScriptedRunner):
    """Something happens while a link's thread copies."""

    meanwhile: Callable[[], None]

    def export(self, pages: list[int], page_size: int, start: int, stop: int) -> memoryview:
        self.meanwhile()
        return super().export(pages, page_size, start, stop)


def test_an_export_that_a_close_overtook_is_not_taken_for_kv() -> None:
    world = World()
    runner = Interrupted(Script(), COST, world, SMALL_SHAPE, LIMITS.page_size)
    engine = SteppingEngine(Batch(LIMITS, "scripted"), runner, lambda event: None, world)
    engine.open(OpenSequence(key("a"), tuple(range(40)), 40, GREEDY, "", True))
    engine.speak(Speak(key("a"), 1))
    world.run(10.0)
    runner.meanwhile = lambda: None
    assert engine.export_kv(key("a"), 0, 40).stop == 40
    runner.meanwhile = lambda: engine.close(key("a"))
    with pytest.raises(KeyError):
        engine.export_kv(key("a"), 0, 40)


def test_it_runs_on_a_real_loop() -> None:
    async def speak() -> list[int]:
        ended = asyncio.Event()
        written: list[int] = []

        def sink(event: Event) -> None:
            if isinstance(event, StepDone):
                written.extend(token for part in event.written for token in part.ids)
                if any(part.finish == Finish("length") for part in event.written):
                    ended.set()

        engine = create_scripted(
            pages=8,
            page_size=16,
            max_sequences=2,
            max_context=128,
            sink=sink,
            clock=LoopClock(asyncio.get_running_loop()),
            cost=COSTS["instant"],
        )
        engine.open(OpenSequence(key("a"), (1, 2, 3), 3, GREEDY, "", True))
        engine.speak(Speak(key("a")))
        await asyncio.wait_for(ended.wait(), 10)
        return written

    assert asyncio.run(speak()) == reference([1, 2, 3], GREEDY, 3, Script())
