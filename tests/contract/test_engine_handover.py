"""KV and ids from engine to engine, run over every adapter: what several write in turn is what one writes alone."""

from dataclasses import replace

import pytest

from pdd.core.events import KvImported, KvImportFailed, SequenceOpened
from pdd.core.sampling import Sampling
from pdd.ports import KvChunk
from tests.contract.engines import ENGINES, GREEDY, LIMITS, SEEDED, Desk, Rig, key

PAGE = LIMITS.page_size
BLOCK = 64


@pytest.fixture(params=list(ENGINES))
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(ENGINES[request.param])


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


def test_the_step_after_an_import_takes_what_was_imported(rig: Rig) -> None:
    """Its ids come in answer to the import, while others decode: they must not wait for a step of those first."""
    ids = rig.prompt(100)
    prefill = prefilled(rig, ids)
    main = rig.desk()
    main.open("other", rig.prompt(50, 3))
    main.speak("other")
    rig.run_until(lambda: len(main.outputs("other")) > 2)
    main.open("a", ids, compute_last=False)
    main.take("a", prefill.export("a", 0, 100))
    rig.run_until(lambda: main.saw(KvImported(key("a"))))
    steps = len(main.steps)
    main.append("a", 0, prefill.outputs("a"))
    main.speak("a")
    rig.run_until(lambda: len(main.steps) > steps)
    assert main.outputs("a") and main.outputs("other")[3:], "both in one step"


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
