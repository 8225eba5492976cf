"""How wide a line a system needs, loads that are a number of sessions at once, and traces in a scenario's place."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdd.cli.main import app
from pdd.plan import lines
from pdd.plan.capacity import capacity, load_of, under
from pdd.sim.scenario import with_trace
from tests.plan.fleets import HERE, SCENARIOS, tiny


def test_the_line_needed_is_the_narrowest_that_keeps_what_all_wider_ones_keep() -> None:
    assert lines.needed([(1, 9.0), (2, 3.0), (4, 2.0), (8, 2.0)], 3.0) == 2
    assert lines.needed([(1, 2.0), (2, 9.0), (4, 2.0), (8, 2.0)], 3.0) == 4, "a lucky narrow one does not count"
    assert lines.needed([(1, 9.0), (2, 9.0)], 3.0) is None


def test_a_narrower_line_never_shortens_the_wait_by_much() -> None:
    scenario = tiny(load={"rate_per_s": 3.0}, fleet={"relay": {"workers": 0}}, routing={"host_price_s": 1e6})
    points = [lines.spot(scenario, factor, 7, HERE) for factor in lines.FACTORS]
    found = lines.waits(scenario, points)
    assert [line for line, _ in found] == [scenario.line.gbit_s * factor for factor in lines.FACTORS]
    assert found[0][1] > 2 * found[-1][1], "a tenth of the line is felt"
    assert lines.plot({"one": found}).startswith("<svg") and lines.as_data({"one": found}, {"one": points})


AGENTS = {"at_once": 6, "duration_s": 30.0, "rate_per_s": 0.0, "hits": None}
SESSIONS = {
    "system": {"median": 500},
    "outputs": {"median": 20},
    "think_s": {"median": 0.5},
    "turns": {"median": 4},
    "context_tokens": 9000,
}


def test_a_closed_loops_load_is_its_sessions_at_once() -> None:
    scenario = tiny(load=AGENTS | {"agent": SESSIONS})
    assert load_of(scenario) == 6
    one, more = under(scenario, 1, 7, HERE), under(scenario, 8, 7, HERE)
    assert one.rate_per_s < more.rate_per_s < 8 * one.rate_per_s * 1.2, "requests a second, as served"
    best = capacity(scenario, 7, HERE, first=6, precision=0.5)
    assert best and best.load >= 6 and best.verdict.kept


def test_a_trace_takes_the_place_of_a_scenarios_sessions(tmp_path: Path) -> None:
    trace = tmp_path / "x.jsonl"
    lines_ = [{"timestamp": 200 * i, "input_length": 600, "output_length": 5, "hash_ids": [1, i]} for i in range(60)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines_))
    changed = with_trace(tiny(), trace)
    assert changed.load.hits is None and changed.load.rate_per_s == tiny().load.rate_per_s
    assert changed.load.trace and changed.load.trace.context_tokens < changed.context_tokens
    arguments = (
        f"--trace {trace} --rate 5 --compare --fixed --system ours --duration 10 --jobs 1 --report {tmp_path}/out"
    )
    said = CliRunner().invoke(app, ["plan", str(SCENARIOS / "agents-qwen.toml"), *arguments.split()])
    assert said.exit_code == 0, said.output
    (row,) = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert row["at"]["summary"]["failed"] == 0 and row["at"]["summary"]["requests"] > 0


@pytest.mark.parametrize("text", ["", '{"timestamp": 0}\n'])
def test_a_trace_that_cannot_be_read_is_told_by_the_planner(text: str, tmp_path: Path) -> None:
    trace = tmp_path / "x.jsonl"
    if text:
        trace.write_text(text)
    arguments = ["plan", str(SCENARIOS / "agents-qwen.toml"), "--trace", str(trace), "--rate", "5", "--compare"]
    said = CliRunner().invoke(app, [*arguments, "--system", "ours", "--jobs", "1"])
    assert said.exit_code == 1 and "x.jsonl" in said.output.replace("\n", "")
