"""What clients ask: reproducible, with the lengths, times and prefixes that a scenario or a trace says."""

import gzip
import json
import math
from bisect import bisect_left
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

import msgspec
import pytest

from pdd.sim.workload import Load, TraceError
from pdd.sim.workload.arrivals import arrivals
from pdd.sim.workload.book import Book
from pdd.sim.workload.draw import Draw
from pdd.sim.workload.hits import HitsLoad

HERE = Path(".")
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
AGENT = {"agent": {"delegates": 0.3}, "at_once": 2, "sessions": 6}
HITS = {"hits": {"context_tokens": 4096, "outputs": {"median": 10}}, "rate_per_s": 5.0, "duration_s": 20}


def load(table: dict) -> Load:
    return msgspec.convert(table, Load)


def played(given: Load, seed: int = 7, base: Path = HERE) -> list[tuple[float, str, tuple[int, ...], int]]:
    """Every request of every session, sub-agents included, with answers of the wanted length."""
    found = []

    def play(when: float, session) -> None:
        turn = session.next(())
        while turn:
            found.append((when, session.name, turn.ids, turn.outputs))
            for child in turn.children:
                play(when, child)
            turn = session.next((5,) * turn.outputs)

    for when, session in given.timed(seed, base):
        play(when, session)
    return found


@pytest.mark.parametrize("table", [AGENT, HITS])
def test_the_same_seed_asks_the_same_and_another_does_not(table: dict) -> None:
    given = load(table)
    assert played(given, 1) == played(given, 1)
    assert played(given, 1) != played(given, 2)


def test_passages_of_different_numbers_differ_from_their_first_ids_on() -> None:
    book = Book(3)
    beginnings = {book.passage(number, 40)[:3] for number in range(5000)}
    assert len(beginnings) == 5000
    assert book.passage(17, 300_000)[:1000] == book.passage(17, 1000), "a longer passage begins as a shorter one"
    assert len(book.passage(17, 300_000)) == 300_000


def test_an_agents_next_prompt_goes_on_from_the_last_one_and_its_answer() -> None:
    (_, session), *_ = load(AGENT).timed(7, HERE)
    first = session.next(())
    second = session.next((1, 2, 3))
    assert second.ids[: len(first.ids) + 3] == (*first.ids, 1, 2, 3)
    assert len(second.ids) > len(first.ids) + 3
    assert session.think_s > 0


def test_agents_of_one_kind_share_their_system_prompt_and_nothing_else() -> None:
    given = load({"agent": {"kinds": 1, "system": {"median": 500}}, "at_once": 2, "sessions": 2})
    (_, one), (_, other) = given.timed(7, HERE)
    a, b = one.next(()).ids, other.next(()).ids
    assert a[:500] == b[:500] and a[500:503] != b[500:503]


def test_a_history_beyond_the_context_is_compacted() -> None:
    table = {"context_tokens": 2000, "system": {"median": 400}, "first": {"median": 1000}, "added": {"median": 600}}
    given = load({"agent": table | {"turns": {"median": 30}}, "at_once": 1, "sessions": 3})
    assert all(len(ids) <= 2000 for _, _, ids, _ in played(given))


def test_hit_rates_have_the_mean_that_was_asked_for() -> None:
    given = HitsLoad(context_tokens=65536, outputs=Draw(1))
    rng = Random(1)
    rates = [given.hit(rng) for _ in range(20_000)]
    assert fmean(rates) == pytest.approx(0.02 + 0.97 * 0.8 / 0.882, abs=0.005)
    assert fmean(rate > 0.95 for rate in rates) == pytest.approx(0.75, abs=0.02), "as published"


def test_a_grain_keeps_the_mean_hit() -> None:
    def mean_hit(grain: int) -> float:
        table = HITS["hits"] | {"context_tokens": 8192, "grain": grain}
        given = load(HITS | {"hits": table, "rate_per_s": 15.0})
        whole = given.preload(7)
        shares = []
        for _, _, ids, _ in played(given):
            shares.append(bisect_left(range(1, len(ids) + 1), True, key=lambda n: ids[:n] != whole[:n]) / len(ids))
        return fmean(shares)

    assert mean_hit(4) == pytest.approx(mean_hit(1), abs=0.04)


def test_standing_requests_come_first_and_their_prompts_are_known() -> None:
    given = load(HITS | {"standing_s": 4.0})
    whole = given.preload(7)
    requests = played(given)
    standing = [ids for when, name, ids, _ in requests if name.startswith("standing")]
    assert len(standing) == 20 and all(ids == whole for ids in standing)


def test_quantiles_are_met_and_their_mean_is_known() -> None:
    draw = Draw(quantiles=((0, 1), (0.3, 100), (0.72, 500), (1, 5640)))
    rng = Random(3)
    values = [draw.draw(rng) for _ in range(20_000)]
    assert fmean(value < 100 for value in values) == pytest.approx(0.30, abs=0.015)
    assert fmean(value < 500 for value in values) == pytest.approx(0.72, abs=0.015)
    assert fmean(values) == pytest.approx(draw.mean(), rel=0.03)
    assert draw.mean() == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize("burst", [0.0, 0.5, 1.0, 3.0])
def test_arrivals_have_their_rate_and_their_burstiness(burst: float) -> None:
    times = [0.0, *islice(arrivals(4.0, burst, Random(5)), 20_000)]
    gaps = [b - a for a, b in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.06)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(burst, abs=0.12 * max(1, burst))


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"at_once": 1, "sessions": 1}, "exactly one"),
        (AGENT | {"rate_per_s": 1.0}, "not both"),
        ({"agent": {}, "sessions": 1}, "is needed"),
        ({"agent": {}, "at_once": 1}, "never end"),
        (AGENT | {"warmup_s": -1.0}, "negative"),
        (AGENT | {"agent": {"outputs": {"median": 3, "quantiles": [[0, 1], [1, 2]]}}}, "either"),
        (AGENT | {"agent": {"kind": 3}}, "unknown field `kind`"),
        ({"trace": {"path": "x", "format": "csv"}}, "one of agentic"),
    ],
)
def test_a_wrong_load_is_told_by_name(table: dict, word: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=word):
        load(table)


# -- traces -----------------------------------------------------------------------------------------------------------


def write_agentic(path: Path, *conversations: dict) -> Path:
    with gzip.open(path, "wt") as lines:
        for conversation in conversations:
            lines.write(json.dumps(conversation) + "\n")
    return path


def entry(tokens: int, out: int, p: int, **more: float) -> dict:
    return {"t": 0.0, "in": tokens, "out": out, "p": p, "r": [], "think_time": 0.0, **more}


def test_a_conversation_that_goes_on_keeps_its_prompt_and_the_answer(tmp_path: Path) -> None:
    path = write_agentic(
        tmp_path / "a.jsonl.gz", {"id": "c", "requests": [entry(640, 30, 0), entry(900, 5, 10), entry(300, 5, 2)]}
    )
    (_, session), *_ = load({"trace": {"path": str(path)}, "at_once": 1}).timed(7, HERE)
    first = session.next(())
    answer = (4,) * 30
    second = session.next(answer)
    third = session.next((4,) * 5)
    assert [len(turn.ids) for turn in (first, second, third)] == [640, 900, 300]
    assert second.ids[:670] == first.ids + answer
    assert third.ids[:128] == second.ids[:128] and third.ids[128:131] != second.ids[128:131], "an edited history"


def test_sub_agents_start_with_an_answer_and_their_time_is_not_thought_twice(tmp_path: Path) -> None:
    child = {"requests": [entry(100, 3, 0)], "duration_ms": 8000}
    path = write_agentic(
        tmp_path / "a.jsonl.gz", {"id": "c", "requests": [entry(640, 3, 0), child, entry(700, 3, 10, think_time=11.0)]}
    )
    (_, session), *_ = load({"trace": {"path": str(path)}, "at_once": 1}).timed(7, HERE)
    first = session.next(())
    assert len(first.children) == 1 and len(first.children[0].next(()).ids) == 100
    session.next(())
    assert session.think_s == pytest.approx(3.0)


def test_a_trace_can_be_scaled_down_for_a_small_model(tmp_path: Path) -> None:
    path = write_agentic(
        tmp_path / "a.jsonl.gz", {"id": "c", "requests": [entry(64_000, 200, 0), entry(66_000, 200, 1000)]}
    )
    table = {"path": str(path), "scale": 0.01, "time_scale": 0.5}
    (_, session), *_ = load({"trace": table, "at_once": 1}).timed(7, HERE)
    first = session.next(())
    second = session.next((4,) * first.outputs)
    assert (len(first.ids), first.outputs, len(second.ids)) == (640, 2, 660)
    assert second.ids[:640] == first.ids


def test_mooncake_blocks_become_common_prefixes_at_their_times(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    lines = [(0, 1100, [1, 2, 3]), (1500, 1500, [1, 2, 9])]
    rows = [{"timestamp": t, "input_length": n, "output_length": 3, "hash_ids": blocks} for t, n, blocks in lines]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (t1, one), (t2, other) = load({"trace": {"path": str(path)}}).timed(7, HERE)
    a, b = one.next(()).ids, other.next(()).ids
    assert (t1, t2) == (0.0, 1.5) and (len(a), len(b)) == (1100, 1500)
    assert a[:1024] == b[:1024] and a[1024:1027] != b[1024:1027]
    assert one.next(()) is None


BAD = {
    "not json": ("x.jsonl", "{\n", "line 1"),
    "a field is missing": ("x.jsonl", '{"timestamp": 1}\n', "line 1.*input_length"),
    "time goes back": (
        "x.jsonl",
        '{"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": []}\n'
        '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": []}\n',
        "line 2",
    ),
    "wrong columns": ("x.csv", "a,b\n1,2\n", "line 1.*TIMESTAMP"),
    "a number is none": ("x.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,many,1\n", "line 2"),
    "not gzip": ("x.jsonl.gz", "plain", "x.jsonl.gz"),
    "no archive": ("x.tar.gz", "plain", "x.tar.gz"),
    "unknown kind of file": ("x.parquet", "", "which format"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_trace_is_told_with_its_place(case: str, tmp_path: Path) -> None:
    name, content, told = BAD[case]
    (tmp_path / name).write_text(content)
    with pytest.raises(TraceError, match=told):
        list(load({"trace": {"path": name}}).timed(7, tmp_path))


def test_a_trace_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such trace"):
        list(load({"trace": {"path": "nowhere.jsonl"}}).timed(7, tmp_path))


def test_servegen_draws_each_clients_rate_and_lengths(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("0,0.5,1,Gamma,1,1\n600,0,0,,0,0\n")
    data = {"0": {"input_tokens": "{100: 0.5, 300: 0.5}", "output_tokens": "{7: 1.0}"}}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps(data))
    requests = played(load({"trace": {"path": ".", "format": "servegen"}}), base=tmp_path)
    assert len(requests) == pytest.approx(300, abs=60)
    assert {len(ids) for _, _, ids, _ in requests} == {100, 300} and {n for *_, n in requests} == {7}
    assert [when for when, *_ in requests] == sorted(when for when, *_ in requests)


def test_servegen_without_its_dataset_is_told(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("0,0.5,1,Gamma,1,1\n")
    with pytest.raises(TraceError, match="no dataset"):
        list(load({"trace": {"path": ".", "format": "servegen"}}).timed(7, tmp_path))


PUBLIC = {
    "kv-cache-tester/agentic_compact.jsonl.gz": (0.85, 1.0),
    "kv-cache-tester/samples/trace_0047.json.gz": (0.85, 1.0),
    "mooncake/conversation_trace.jsonl": (0.0, 0.9),
    "azure/AzureLLMInferenceTrace_code.csv": (0.0, 0.0),
    "servegen/deepseek-r1.tar.xz": (0.0, 0.0),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces_replay_with_their_prefixes(name: str) -> None:
    if not (TRACES / name).exists():
        pytest.skip("the public traces are not here")
    least, most = PUBLIC[name]
    given = load({"trace": {"path": name, "limit": 6, "scale": 0.02}, "at_once": 1})
    known: set[tuple[int, ...]] = set()
    prompt = hit = 0
    for _, _, ids, outputs in played(given, base=TRACES):
        assert ids and outputs >= 1
        blocks = [ids[:stop] for stop in range(64, len(ids) + 1, 64)]
        hit += 64 * sum(block in known for block in blocks)
        prompt += len(ids)
        known.update(blocks)
    assert prompt and least <= hit / prompt <= most
    assert math.isfinite(prompt)
