"""The load generator measures what a client sees, of any OpenAI-compatible server, and says plainly when it cannot."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from loadgen.__main__ import app
from loadgen.sse import EventReader
from loadgen.words import Words
from tests.loadgen.server_double import Double, serving

REPORT = {
    "route": "P-RLD-MD",
    "epochs": 1,
    "ids": [11, 12, 13, 14],
    "hit": {"prefill": 2, "main_decode": 1},
    "spoke": [["prefill", 0, 1], ["relay_decode", 1, 3], ["main_decode", 3, 4]],
    "transfers": [
        {"way": "wan", "bytes": 1000, "seconds": 0.5, "to": "main_decode"},
        {"way": "near", "bytes": 900, "seconds": 0.01, "to": "relay_decode"},
    ],
}


def scenario(folder: Path, load: str) -> str:
    path = folder / "x.toml"
    path.write_text(f'name = "x"\n[load]\n{load}\n')
    return str(path)


TWO_TURNS = """
sessions = 3
at_once = 2
[load.agent]
kinds = 1
system = { median = 20 }
first = { median = 10 }
added = { median = 5 }
outputs = { median = 4 }
turns = { median = 2 }
think_s = { median = 0.05 }
"""
OPEN = """
rate_per_s = 20.0
duration_s = 1.0
[load.hits]
context_tokens = 64
outputs = { median = 4 }
"""


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def measured(double: Double, folder: Path, load: str, *more: str) -> dict:
    with serving(double) as url:
        run("--scenario", scenario(folder, load), "--target", url, "--report", str(folder / "out"), *more)
    found = json.loads((folder / "out" / "report.json").read_text())
    page = (folder / "out" / "report.html").read_text()
    assert page.startswith("<!doctype html>") and page.count("<svg") == page.count("</svg>") == 12
    for plot in (
        "first token",
        "second token",
        "between outputs",
        "largest gap",
        "whole session",
        "hit rate",
        "who wrote",
    ):
        assert plot in page
    return found


def test_conversations_are_played_with_their_histories(tmp_path: Path) -> None:
    double = Double(token_ids=True)
    found = measured(double, tmp_path, TWO_TURNS)
    assert (found["requests"], found["failed"]) == (6, 0)
    assert double.most_at_once == 2
    by_length = sorted((body["prompt"] for body in double.seen), key=len)
    first, second = by_length[0], next(p for p in by_length if len(p) > 30 and p[:30] == by_length[0])
    assert second[30:34] == [5000, 5001, 5002, 5003], "the answer as it came stands in the next prompt"
    assert first[:20] == by_length[-1][:20], "the system prompt is shared"


def test_times_are_those_of_the_client(tmp_path: Path) -> None:
    found = measured(Double(first_s=0.2, token_s=0.1), tmp_path, TWO_TURNS, "--sessions", "1")
    assert 0.2 <= found["ttft_s"]["p50"] < 0.6
    assert found["second_token_s"]["p50"] >= 0.2 + 0.1, "from when it was sent, however late the first was seen"
    assert found["second_token_s"]["p50"] - found["ttft_s"]["p50"] < 0.4
    assert 0.09 < found["itl_s"]["p50"] < 0.3
    assert found["largest_gap_s"]["max"] >= found["itl_s"]["p50"] * 0.9
    assert found["session_s"]["p50"] > found["session_without_thinking_s"]["p50"] > 2 * 0.6


def test_an_open_loop_counts_from_when_it_should_have_been_sent(tmp_path: Path) -> None:
    found = measured(Double(), tmp_path, OPEN)
    records = found["records"]
    assert found["requests"] == pytest.approx(20, abs=14)
    assert all(record["intended_s"] <= record["sent_s"] + 1e-3 for record in records)
    gaps = [b["intended_s"] - a["intended_s"] for a, b in pairwise(records)]
    assert min(gaps) < 0.5 * max(gaps), "Poisson, not a metronome"


def test_what_a_pdd_router_tells_is_kept(tmp_path: Path) -> None:
    found = measured(Double(report=REPORT), tmp_path, TWO_TURNS)
    assert found["routes"] == {"P-RLD-MD": 6}
    assert found["shares"] == {"main_decode": 0.25, "prefill": 0.25, "relay_decode": 0.5}
    assert found["line"]["bytes_per_request"] == 1000
    assert found["hit"]["main_decode"] > 0 and sum(found["hit"]["bins"].values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("double", "kind"),
    [(Double(), "ids"), (Double(takes_ids=False), "text"), (Double(has_completions=False), "chat")],
    ids=["ids", "text", "chat"],
)
def test_a_server_gets_prompts_as_it_takes_them(double: Double, kind: str, tmp_path: Path) -> None:
    found = measured(double, tmp_path, TWO_TURNS)
    assert found["facts"]["prompts"] == kind and found["failed"] == 0
    if kind == "text":
        prompts = sorted((body["prompt"] for body in double.seen), key=len)
        assert any(" w0 w1 w2 w3" in prompt for prompt in prompts), "the answer's text stands in the next prompt"
        assert len(prompts[0].split()) == 30, "a word for an id"


def test_lengths_are_exact_unless_openais_own_fields_alone_are_wanted(tmp_path: Path) -> None:
    double = Double()
    measured(double, tmp_path, TWO_TURNS)
    assert all(body["ignore_eos"] and body["min_tokens"] == body["max_tokens"] == 4 for body in double.seen)
    double = Double()
    measured(double, tmp_path, TWO_TURNS, "--plain")
    assert not any("ignore_eos" in body or "min_tokens" in body for body in double.seen)


@pytest.mark.parametrize(
    ("trouble", "told"), [("error", "lost a worker"), ("cut", r"without \[DONE\]"), ("refuse", "HTTP 429 too busy")]
)
def test_a_broken_answer_ends_its_session_and_is_counted(trouble: str, told: str, tmp_path: Path) -> None:
    found = measured(Double(trouble={0: trouble}), tmp_path, TWO_TURNS)
    assert (found["requests"], found["failed"]) == (5, 1)
    (message,) = found["errors"]
    assert re.search(told, message)


def test_silence_is_bounded(tmp_path: Path) -> None:
    found = measured(Double(trouble={0: "silent"}), tmp_path, TWO_TURNS, "--silence", "0.5")
    assert found["failed"] == 1 and "Timeout" in next(iter(found["errors"]))


def test_nothing_new_begins_after_the_duration(tmp_path: Path) -> None:
    long = TWO_TURNS.replace("sessions = 3", "duration_s = 0.6").replace("median = 2 }", "median = 50 }")
    found = measured(Double(), tmp_path, long)
    assert found["requests"] >= 4 and max(record["sent_s"] for record in found["records"]) < 0.9


# -- what cannot be measured ------------------------------------------------------------------------------------------


def no_report(folder: Path) -> None:
    assert not (folder / "out").exists(), "no half report"


def test_a_wrong_target_is_told(tmp_path: Path) -> None:
    said = run(
        "--scenario",
        scenario(tmp_path, TWO_TURNS),
        "--target",
        "http://127.0.0.1:9",
        "--report",
        str(tmp_path / "out"),
        code=1,
    )
    assert "nothing answers at http://127.0.0.1:9" in said
    no_report(tmp_path)


def test_a_server_of_another_kind_is_told(tmp_path: Path) -> None:
    with serving(Double()) as url:
        said = run("--scenario", scenario(tmp_path, TWO_TURNS), "--target", url + "/deeper", code=1)
    assert "404" in said and "OpenAI-compatible" in said


def test_a_malformed_trace_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(
        '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n{"timestamp": 1}\n'
    )
    double = Double()
    with serving(double) as url:
        said = run("--trace", str(tmp_path / "bad.jsonl"), "--target", url, "--report", str(tmp_path / "out"), code=1)
    assert "bad.jsonl, line 2" in said and not double.seen
    no_report(tmp_path)


def test_an_unknown_scenario_names_those_there_are(tmp_path: Path) -> None:
    assert "agent" in run("--scenario", "nonsense", code=1)


def test_options_that_do_not_fit_are_told(tmp_path: Path) -> None:
    said = run("--scenario", scenario(tmp_path, TWO_TURNS), "--at-once", "0", code=1)
    assert "at_once or rate_per_s is needed" in said


# -- parts ------------------------------------------------------------------------------------------------------------

EVENTS = [b'{"a": 1}', b"[DONE]", b"two\nlines", b""]
STREAM = b": keep-alive\n\n" + b"".join(b"data: " + e.replace(b"\n", b"\ndata: ") + b"\n\n" for e in EVENTS)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.booleans())
def test_events_are_read_the_same_however_they_are_cut(cuts: list[int], crlf: bool) -> None:
    stream = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    reader, found, at = EventReader(), [], 0
    for cut in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        found += reader.feed(stream[at:cut])
        at = cut
    assert found == EVENTS


def test_an_answers_text_comes_back_where_its_ids_stand() -> None:
    words = Words()
    one, other = words.keep("first answer", 5), words.keep("second", 1)
    assert (len(one), len(other)) == (5, 1)
    text = words.text((1001, *one, 1002, *other))
    assert text.count("first answer") == 1 and text.endswith("second") and text.startswith(" ")
