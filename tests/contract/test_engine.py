"""What every engine owes its machine, run over every adapter: the same ids as one engine alone, however the work is cut up or moved."""

import pytest

from pdd.core.blocks import block_hashes
from pdd.core.events import SequenceOpened, SequenceRefused
from pdd.core.ids import BlockHash
from pdd.core.sampling import Finish, Sampling
from tests.contract.engines import ENGINES, GREEDY, LIMITS, SEEDED, Desk, Rig, key

PAGE = LIMITS.page_size


@pytest.fixture(params=list(ENGINES))
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(ENGINES[request.param])


# -- speaking ---------------------------------------------------------------------------------------------------------


def test_a_speaker_writes_from_index_0_up_to_max_tokens_and_says_so_with_the_last(rig: Rig) -> None:
    desk = rig.desk()
    desk.open("a", rig.prompt(100))
    desk.speak("a")
    rig.settle()
    parts = desk.written("a")
    assert parts[0].start == 0 and len(desk.outputs("a")) == 24
    assert [part.finish for part in parts] == [None] * 23 + [Finish("length")]
    assert len(set(desk.outputs("a"))) > 8, "varied outputs, or the other tests prove little"


def test_a_stop_token_is_the_last_output_and_is_named(rig: Rig) -> None:
    alone = rig.alone(rig.prompt(40), GREEDY)
    stop = alone[5]
    desk = rig.desk()
    desk.open("a", rig.prompt(40), Sampling(max_tokens=24, stop_token_ids=(stop,)))
    desk.speak("a")
    rig.settle()
    assert desk.outputs("a") == alone[: alone.index(stop) + 1]
    assert desk.written("a")[-1].finish == Finish("stop", stop)


@pytest.mark.parametrize("chunk_tokens", [8, 17, 64, 300])
def test_chunk_sizes_change_no_id(rig: Rig, chunk_tokens: int) -> None:
    desk = rig.desk(chunk_tokens=chunk_tokens)
    desk.open("a", rig.prompt(150))
    desk.speak("a")
    rig.settle()
    assert desk.outputs("a") == rig.alone(rig.prompt(150), GREEDY)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_sixteen_at_once_write_what_each_writes_alone(rig: Rig, sampling: Sampling) -> None:
    desk = rig.desk(pages=256)
    prompts = {f"r{n}": rig.prompt(10 + 9 * n, n) for n in range(16)}
    for name, ids in prompts.items():
        desk.open(name, ids, sampling)
        desk.speak(name)
    rig.settle()
    for name, ids in prompts.items():
        assert desk.outputs(name) == rig.alone(ids, sampling), name


def test_limits_and_indices_count_from_the_prompt_not_from_the_ids_at_open(rig: Rig) -> None:
    alone = rig.alone(rig.prompt(60), GREEDY)
    desk = rig.desk()
    desk.open("a", rig.prompt(60) + alone[:10], prompt_len=60)
    desk.speak("a")
    rig.settle()
    assert desk.written("a")[0].start == 10
    assert desk.outputs("a") == alone[10:]


def test_a_bounded_speaker_pauses_exactly_there_and_goes_on_when_told(rig: Rig) -> None:
    desk = rig.desk()
    desk.open("a", rig.prompt(50))
    for stop in (1, 7, 8):
        desk.speak("a", stop)
        rig.settle()
        assert len(desk.outputs("a")) == stop
        assert desk.written("a")[-1].finish is None
    desk.speak("a")
    rig.settle()
    assert desk.outputs("a") == rig.alone(rig.prompt(50), GREEDY)


def test_hush_lets_the_step_under_way_write_and_nothing_after_it(rig: Rig) -> None:
    desk = rig.desk()
    desk.open("a", rig.prompt(50))
    desk.speak("a")
    rig.run_until(lambda: len(desk.outputs("a")) >= 5)
    before = len(desk.outputs("a"))
    desk.hush("a")
    rig.settle()
    assert len(desk.outputs("a")) <= before + 1
    desk.speak("a")
    rig.settle()
    assert desk.outputs("a") == rig.alone(rig.prompt(50), GREEDY)


def test_who_has_no_output_left_is_ended_at_once(rig: Rig) -> None:
    desk = rig.desk()
    desk.open("a", rig.prompt(30), Sampling(max_tokens=3), prompt_len=27)
    desk.speak("a")
    rig.settle()
    assert [(part.start, part.ids, part.finish) for part in desk.written("a")] == [(3, (), Finish("length"))]


def test_a_text_ends_where_the_context_ends(rig: Rig) -> None:
    desk = rig.desk(max_context=64)
    desk.open("a", rig.prompt(60))
    desk.speak("a")
    rig.settle()
    assert desk.outputs("a") == rig.alone(rig.prompt(60), GREEDY)[:5]
    assert desk.written("a")[-1].finish == Finish("length")


def test_a_long_prefill_does_not_silence_those_who_speak(rig: Rig) -> None:
    desk = rig.desk()
    desk.open("a", rig.prompt(20))
    desk.speak("a")
    rig.run_until(lambda: bool(desk.outputs("a")))
    desk.open("long", rig.prompt(600, 1))
    desk.speak("long")
    rig.run_until(lambda: bool(desk.outputs("long")))
    during = [step for step in desk.steps if any(of == key("long") for of, _ in step.computed)]
    assert len(during) >= 600 // (LIMITS.chunk_tokens * 5 // 4)
    assert all(any(part.request == "a" for part in step.written) for step in during[1:])


# -- opening and closing ----------------------------------------------------------------------------------------------


def test_opening_twice_is_opening_once(rig: Rig) -> None:
    desk = rig.desk()
    assert desk.open("a", rig.prompt(50)) == SequenceOpened(key("a"), 0)
    assert desk.open("a", rig.prompt(50)) == SequenceOpened(key("a"), 0)
    desk.speak("a")
    rig.settle()
    assert desk.outputs("a") == rig.alone(rig.prompt(50), GREEDY)


def test_what_can_never_run_is_refused_with_its_limit(rig: Rig) -> None:
    desk = rig.desk(pages=8, max_context=200, max_sequences=1)
    for tokens, limit in ((201, "200"), (129, "128")):
        answer = desk.open("a", rig.prompt(tokens))
        assert isinstance(answer, SequenceRefused) and limit in answer.reason
    assert isinstance(desk.open("a", []), SequenceRefused)
    assert isinstance(desk.open("a", rig.prompt(128)), SequenceOpened)
    assert isinstance(desk.open("b", rig.prompt(5)), SequenceRefused)


def test_unknown_sequences_are_nobody(rig: Rig) -> None:
    desk = rig.desk()
    desk.close("a")
    desk.hush("a")
    desk.speak("a")
    desk.append("a", 0, [1])
    rig.settle()
    assert desk.events == []


def test_closing_in_the_middle_of_a_step_writes_nothing_more_and_gives_all_back(rig: Rig) -> None:
    desk = rig.desk()
    desk.open("a", rig.prompt(100))
    desk.speak("a")
    rig.run_until(lambda: len(desk.outputs("a")) >= 2)
    desk.close("a")
    written = len(desk.outputs("a"))
    desk.open("a", rig.prompt(30, 5))
    desk.speak("a", 1)
    rig.settle()
    assert [part.start for part in desk.written("a")][written:] == [0], "the new life of the key, from its start"
    desk.close("a")
    rig.settle()
    assert desk.engine.load().free_pages == desk.limits.pages


# -- prefix cache -----------------------------------------------------------------------------------------------------


def test_a_second_turn_finds_the_first_and_writes_the_same(rig: Rig) -> None:
    desk = rig.desk()
    desk.open("a", rig.prompt(100))
    desk.speak("a")
    rig.settle()
    conversation = rig.prompt(100) + desk.outputs("a") + rig.prompt(30, 9)
    desk.close("a")
    answer = desk.open("b", conversation)
    assert answer == SequenceOpened(key("b"), (100 + 23) // PAGE * PAGE), "the last output has no KV"
    desk.speak("b")
    rig.settle()
    assert desk.outputs("b") == rig.alone(conversation, GREEDY)


def test_another_salt_shares_nothing_and_at_least_the_last_id_is_computed(rig: Rig) -> None:
    desk = rig.desk()
    ids = rig.prompt(4 * PAGE)
    desk.open("a", ids)
    desk.speak("a")
    rig.settle()
    assert desk.open("b", ids, salt="tenant") == SequenceOpened(key("b"), 0)
    assert desk.open("c", ids) == SequenceOpened(key("c"), 3 * PAGE)
    assert desk.open("d", ids, compute_last=False) == SequenceOpened(key("d"), 4 * PAGE)
    for name in "bcd":
        desk.speak(name)
    rig.settle()
    for name in "bcd":
        assert desk.outputs(name) == rig.alone(ids, GREEDY), name


def test_stored_and_removed_blocks_add_up_to_the_snapshot(rig: Rig) -> None:
    desk = rig.desk(pages=24)
    texts = {}
    for n in range(6):
        texts[f"r{n}"] = rig.prompt(140, n)
        desk.open(f"r{n}", texts[f"r{n}"])
        desk.speak(f"r{n}", 2)
        rig.settle()
        desk.close(f"r{n}")
    rig.settle()
    told: set[BlockHash] = set()
    for step in desk.steps:
        assert not told & set(step.stored) and told >= set(step.removed)
        told = (told | set(step.stored)) - set(step.removed)
    assert told == set(desk.engine.snapshot())
    hashes = {name: block_hashes(tuple(ids), desk.engine.fingerprint, "") for name, ids in texts.items()}
    assert set(hashes["r5"]) <= told
    for chain in hashes.values():
        held = [block in told for block in chain]
        assert held == sorted(held, reverse=True), "prefix-closed"
    assert told <= {block for chain in hashes.values() for block in chain}


# -- pressure ---------------------------------------------------------------------------------------------------------


def test_more_than_the_pages_hold_is_written_all_the_same(rig: Rig) -> None:
    sampling = Sampling(max_tokens=60)
    desk = rig.desk(pages=14)
    prompts = {f"r{n}": rig.prompt(30 + 10 * n, n) for n in range(6)}
    for name, ids in prompts.items():
        desk.open(name, ids, sampling)
        desk.speak(name)
    for name, ids in prompts.items():
        rig.run_until(lambda name=name: bool(desk.written(name)) and desk.written(name)[-1].finish is not None)
        assert desk.outputs(name) == rig.alone(ids, sampling)
        desk.close(name)
    rig.settle()
    assert desk.engine.load().free_pages == 14
    for name in prompts:
        assert desk.computed(name) == sorted(set(desk.computed(name))), "what was told once is not told again"


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_who_gave_its_pages_up_computes_them_again_and_writes_on_as_before(rig: Rig, sampling: Sampling) -> None:
    desk = rig.desk(pages=13, chunk_tokens=32)
    old, young = rig.prompt(90), rig.prompt(80, 1)
    for name, ids in (("old", old), ("young", young)):
        desk.open(name, ids, sampling)
        desk.speak(name)
    rig.run_until(lambda: bool(desk.outputs("young")) and lacks_kv(desk, "young"))
    assert len(desk.outputs("young")) < sampling.max_tokens, "it was in the midst of writing"
    rig.run_until(lambda: bool(desk.written("old")[-1].finish))
    desk.close("old")
    rig.settle()
    assert desk.outputs("old") == rig.alone(old, sampling)
    assert desk.outputs("young") == rig.alone(young, sampling)


def lacks_kv(desk: Desk, name: str) -> bool:
    try:
        desk.export(name, 0, 1)
    except KeyError:
        return True
    return False


def test_load_tells_what_runs_what_waits_and_how_fast(rig: Rig) -> None:
    desk = rig.desk()
    desk.open("a", rig.prompt(200))
    desk.speak("a")
    assert desk.engine.load().waiting_tokens == 200 and desk.engine.load().running == 1
    rig.settle()
    load = desk.engine.load()
    assert (load.running, load.waiting_tokens, load.total_pages) == (0, 0, LIMITS.pages)
    assert load.prefill_tokens_per_s > 0 and load.step_s > 0
    assert desk.steps[-1].load == load
