"""What every engine owes its machine, run over every adapter: the same ids as one engine alone, however the work is cut up or moved."""

from dataclasses import replace

import pytest

from pdd.core.blocks import block_hashes
from pdd.core.events import KvImported, KvImportFailed, SequenceOpened, SequenceRefused
from pdd.core.ids import BlockHash
from pdd.core.sampling import Finish, Sampling
from pdd.ports import KvChunk
from tests.contract.engines import ENGINES, GREEDY, LIMITS, Desk, EngineKind, Rig, key

PAGE = LIMITS.page_size
BLOCK = 64
SEEDED = Sampling(max_tokens=24, temperature=0.8, seed=7)


@pytest.fixture(params=list(ENGINES))
def kind(request: pytest.FixtureRequest) -> EngineKind:
    return ENGINES[request.param]


@pytest.fixture
def rig(kind: EngineKind) -> Rig:
    return Rig(kind)


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


# -- the hand-over ----------------------------------------------------------------------------------------------------


def prefilled(rig: Rig, ids: list[int], sampling: Sampling = GREEDY) -> Desk:
    """P, after token 0."""
    desk = rig.desk()
    desk.open("a", ids, sampling)
    desk.speak("a", 1)
    rig.settle()
    return desk


def received(rig: Rig, chunks: list[KvChunk], ids: list[int], sampling: Sampling = GREEDY, **limits: int) -> Desk:
    """RLD or MD, whole."""
    desk = rig.desk(**limits)
    desk.open("a", ids, sampling, compute_last=False)
    released = desk.take("a", chunks)
    rig.settle()
    assert desk.saw(KvImported(key("a"))) and released == ["a"]
    return desk


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("fence", [1, 2, PAGE - 1, PAGE, PAGE + 1])
def test_three_engines_in_turn_write_what_one_writes(rig: Rig, fence: int, sampling: Sampling) -> None:
    ids = rig.prompt(2 * BLOCK + 3)
    prefill = prefilled(rig, ids, sampling)
    chunks = prefill.export("a", 0, len(ids))
    eager = prefill.outputs("a")
    if fence > 1:
        relay = received(rig, chunks, ids, sampling)
        relay.append("a", 0, eager)
        relay.speak("a", fence)
        rig.settle()
        eager = eager + relay.outputs("a")
    main = received(rig, chunks, ids, sampling, page_size=32, pages=64, chunk_tokens=8)
    main.append("a", 0, eager)
    main.speak("a")
    rig.settle()
    assert eager + main.outputs("a") == rig.alone(ids, sampling)
    assert len(eager) == fence and main.written("a")[0].start == fence


def test_main_extends_beside_its_running_batch_while_ids_arrive_in_any_portion(rig: Rig) -> None:
    ids = rig.prompt(100)
    alone = rig.alone(ids, GREEDY)
    main = received(rig, prefilled(rig, ids).export("a", 0, 100), ids, chunk_tokens=8)
    main.open("other", rig.prompt(50, 3))
    main.speak("other")
    for start, stop in ((0, 1), (0, 3), (2, 9), (9, 9), (5, 19)):
        main.append("a", start, alone[start:stop])
        rig.run_until(lambda stop=stop: 100 + stop - 1 in (100, *main.computed("a")))
    assert main.computed("a")[-1] == 118, "all but the last, whose step will sample"
    main.speak("a")
    rig.settle()
    assert main.outputs("a") == alone[19:]
    assert main.outputs("other") == rig.alone(rig.prompt(50, 3), GREEDY)


def test_chunks_leave_as_they_are_computed_and_enter_in_pieces_of_any_size(rig: Rig) -> None:
    ids = rig.prompt(150)
    prefill = rig.desk()
    prefill.open("a", ids)
    prefill.speak("a", 1)
    chunks: list[KvChunk] = []
    while not prefill.outputs("a"):
        known = len(prefill.computed("a"))
        rig.run_until(lambda known=known: len(prefill.computed("a")) > known)
        chunks += prefill.export("a", chunks[-1].stop if chunks else 0, prefill.computed("a")[-1])
    assert len(chunks) > 1 and prefill.computed("a")[-1] == 150
    main = rig.desk()
    main.open("a", ids, compute_last=False)
    for chunk in chunks:
        main.take("a", [chunk])
        rig.settle()
    main.append("a", 0, prefill.outputs("a"))
    main.speak("a")
    rig.settle()
    assert main.outputs("a") == rig.alone(ids, GREEDY)[1:]


def test_main_takes_only_what_its_cache_lacks(rig: Rig) -> None:
    ids = rig.prompt(150)
    main = rig.desk()
    main.open("before", ids[:100])
    main.speak("before", 1)
    rig.settle()
    main.close("before")
    answer = main.open("a", ids, compute_last=False)
    assert answer == SequenceOpened(key("a"), 100 // PAGE * PAGE)
    prefill = prefilled(rig, ids)
    main.take("a", prefill.export("a", 100 // PAGE * PAGE, 150))
    main.append("a", 0, prefill.outputs("a"))
    main.speak("a")
    rig.settle()
    assert main.outputs("a") == rig.alone(ids, GREEDY)[1:]


def test_who_has_all_kv_and_no_token_computes_the_last_id_again(rig: Rig) -> None:
    ids = rig.prompt(5 * PAGE)
    main = received(rig, prefilled(rig, ids).export("a", 0, len(ids)), ids)
    main.speak("a")
    rig.settle()
    assert main.outputs("a") == rig.alone(ids, GREEDY)


def flip(chunk: KvChunk, token: int) -> KvChunk:
    """One token's KV in one layer, damaged."""
    data = bytearray(chunk.data)
    row = chunk.shape.bytes_per_token // chunk.shape.layers
    at = (chunk.stop - chunk.start + token) * row
    data[at : at + row] = bytes(byte ^ 0x3C for byte in data[at : at + row])
    return replace(chunk, data=memoryview(data))


def swap_keys(chunk: KvChunk) -> KvChunk:
    """Two tokens' keys in each other's place. (Keys together with their values may be swapped: attention sees a set.)"""
    data = bytearray(chunk.data)
    row = chunk.shape.bytes_per_token // chunk.shape.layers
    for layer in range(chunk.shape.layers):
        one = layer * (chunk.stop - chunk.start) * row
        other = one + 20 * row
        keys = slice(one, one + row // 2), slice(other, other + row // 2)
        data[keys[0]], data[keys[1]] = data[keys[1]], data[keys[0]]
    return replace(chunk, data=memoryview(data))


def test_damaged_or_misplaced_kv_shows_so_the_other_tests_prove_something(rig: Rig) -> None:
    ids = rig.prompt(100)
    prefill = prefilled(rig, ids)
    chunks = prefill.export("a", 0, 100)
    for wrong in (flip(chunks[0], 20), swap_keys(chunks[0])):
        main = received(rig, [wrong, *chunks[1:]], ids)
        main.append("a", 0, prefill.outputs("a"))
        main.speak("a")
        rig.settle()
        assert main.outputs("a") != rig.alone(ids, GREEDY)[1:]


def test_an_import_is_answered_once_whatever_becomes_of_it(rig: Rig) -> None:
    ids = rig.prompt(100)
    chunks = prefilled(rig, ids).export("a", 0, 100)
    main = rig.desk()
    assert main.take("nobody", chunks) == ["nobody"]
    assert isinstance(main.events[-1], KvImportFailed)
    main.open("own", ids)
    assert main.take("own", chunks) == ["own"]
    main.open("gap", ids, compute_last=False)
    assert main.take("gap", chunks[1:]) == [] and main.take("gap", [chunks[0], chunks[0]]) == ["gap"]
    main.open("short", ids, compute_last=False)
    short = replace(chunks[0], data=chunks[0].data[:-8])
    released = main.take("short", [short, chunks[1]])
    main.open("gone", ids, compute_last=False)
    late = main.take("gone", chunks)
    main.close("gone")
    rig.settle()
    assert (released, late) == (["short"], ["gone"])
    answered = [event.key.request for event in main.events if isinstance(event, KvImported | KvImportFailed)]
    assert sorted(answered) == ["gap", "gap", "gone", "nobody", "own", "short"]
    for name in ("own", "gap", "short"):
        main.close(name)
    rig.settle()
    assert main.engine.load().free_pages == main.limits.pages


def test_kv_of_the_closed_and_of_the_uncomputed_is_not_exported(rig: Rig) -> None:
    prefill = prefilled(rig, rig.prompt(40))
    with pytest.raises(KeyError):
        prefill.export("a", 0, 41)
    prefill.close("a")
    with pytest.raises(KeyError):
        prefill.export("a", 0, 40)


def test_closing_while_an_import_waits_behind_another_answers_it_and_gives_its_pages_back(rig: Rig) -> None:
    ids = rig.prompt(100)
    chunks = prefilled(rig, ids).export("a", 0, 100)
    main = rig.desk()
    released = {}
    for name in ("first", "second"):
        main.open(name, ids, compute_last=False, salt=name)
        released[name] = main.take(name, chunks)
    rig.run_until(lambda: main.engine.load().free_pages < main.limits.pages)
    assert main.events[2:] == [], "the first is being written"
    for name in ("first", "second"):
        main.close(name)
    assert (released["second"], main.events[2:]) == (
        ["second"],
        [KvImportFailed(key("second"), "the sequence is closed")],
    )
    assert released["first"] == [], "its memory is being read"
    rig.settle()
    assert released["first"] == ["first"] and not main.saw(KvImported(key("first")))
    assert main.engine.load().free_pages == main.limits.pages and main.engine.snapshot() == ()


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


def test_imports_wait_for_pages_first_come_first_served(rig: Rig) -> None:
    ids, other = rig.prompt(100), rig.prompt(20, 1)
    chunks, short = prefilled(rig, ids).export("a", 0, 100), prefilled(rig, other).export("a", 0, 20)
    main = rig.desk(pages=10)
    main.open("big", rig.prompt(140, 2))
    main.speak("big", 1)
    rig.settle()
    main.open("first", ids, compute_last=False)
    main.open("second", other, compute_last=False)
    main.take("first", chunks)
    main.take("second", short)
    rig.settle()
    assert not main.saw(KvImported(key("first"))) and not main.saw(KvImported(key("second")))
    main.close("big")
    rig.settle()
    answers = [event.key.request for event in main.events if isinstance(event, KvImported)]
    assert answers == ["first", "second"]
    for name in ("first", "second"):
        main.append(name, 0, [5])
        main.speak(name)
    rig.run_until(lambda: len(main.outputs("first")) > 3)


def test_two_that_hold_each_others_pages_do_not_wait_for_ever(rig: Rig) -> None:
    main = rig.desk(pages=10)
    texts = {name: rig.prompt(7 * PAGE, n) for n, name in enumerate("ab")}
    chunks = {name: prefilled(rig, ids).export("a", 4 * PAGE, 7 * PAGE) for name, ids in texts.items()}
    for name, ids in texts.items():
        main.open(f"before-{name}", ids[: 4 * PAGE])
        main.speak(f"before-{name}", 1)
        rig.settle()
        main.close(f"before-{name}")
    for name, ids in texts.items():
        assert main.open(name, ids, compute_last=False) == SequenceOpened(key(name), 4 * PAGE)
    for name in texts:
        main.take(name, chunks[name])
    rig.settle()
    assert main.saw(KvImported(key("a"))), "the younger lets its prefix go"
    main.append("a", 0, [5])
    main.speak("a", 3)
    rig.settle()
    main.close("a")
    rig.settle()
    answers = [type(event) for event in main.events if getattr(event, "key", None) == key("b")]
    assert answers in ([SequenceOpened, KvImported], [SequenceOpened, KvImportFailed])


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
