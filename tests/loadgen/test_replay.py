"""Public traces against a server: its prompts have the trace's lengths and shared prefixes, as real token ids."""

import csv
import gzip
import json
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgen.__main__ import app
from tests.loadgen.server_double import Double, serving

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
SCALED = """
name = "replay"
[load]
highest_id = 30000
[load.trace]
path = "replaced by --trace"
scale = {scale}
time_scale = 0.01
"""


def replayed(trace: Path, folder: Path, *more: str, scale: float = 1.0) -> tuple[Double, dict]:
    double = Double(first_s=0.0, token_s=0.0)
    (folder / "x.toml").write_text(SCALED.format(scale=scale))
    with serving(double) as url:
        out = ["--report", str(folder / "out"), "--target", url]
        result = CliRunner().invoke(app, ["--scenario", str(folder / "x.toml"), "--trace", str(trace), *out, *more])
    assert result.exit_code == 0, result.output
    found = json.loads((folder / "out" / "report.json").read_text())
    assert found["failed"] == 0 and found["requests"] == len(double.seen) > 0
    for body in double.seen:
        assert all((isinstance(one, int) and 1000 <= one < 30_000) or one in range(100, 200) for one in body["prompt"])
    return double, found


def common(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def agentic(folder: Path) -> Path:
    requests = [{"in": 640, "out": 4, "p": 0}, {"in": 900, "out": 3, "p": 10}]
    with gzip.open(folder / "a.jsonl.gz", "wt") as lines:
        lines.write(json.dumps({"id": "c", "requests": requests}) + "\n")
    return folder / "a.jsonl.gz"


def mooncake(folder: Path) -> Path:
    rows = [
        {"timestamp": 0, "input_length": 640, "output_length": 4, "hash_ids": [1, 2]},
        {"timestamp": 900, "input_length": 900, "output_length": 3, "hash_ids": [1, 3]},
    ]
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "m.jsonl"


def azure(folder: Path) -> Path:
    with (folder / "z.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
                ["2023-11-16 18:17:03.9799600", 640, 4],
                ["2023-11-16 18:17:04.0319569", 900, 3],
            ]
        )
    return folder / "z.csv"


def servegen(folder: Path) -> Path:
    clients = folder / "clients"
    clients.mkdir()
    (clients / "chunk-0-trace.csv").write_text("0,0.02,1,Gamma,1,1\n")
    data = {"0": {"input_tokens": "{640: 0.5, 900: 0.5}", "output_tokens": "{4: 1.0}"}}
    (clients / "chunk-0-dataset.json").write_text(json.dumps(data))
    return clients


SHARED = {agentic: 640, mooncake: 512, azure: 0}


@pytest.mark.parametrize("write", [agentic, mooncake, azure, servegen], ids=lambda write: write.__name__)
def test_each_format_is_replayed_with_its_lengths_and_prefixes(write: Callable[[Path], Path], tmp_path: Path) -> None:
    more = ("--at-once", "1") if write is agentic else ("--sessions", "6")
    double, _ = replayed(write(tmp_path), tmp_path, *more)
    prompts = sorted((body["prompt"] for body in double.seen), key=len)
    assert {len(prompt) for prompt in prompts} == {640, 900}
    if write in SHARED:
        assert common(prompts[0], prompts[-1]) == pytest.approx(SHARED[write], abs=2)
        assert sorted(body["max_tokens"] for body in double.seen) == [3, 4]


PUBLIC = {
    "kv-cache-tester/agentic_compact.jsonl.gz": ("--at-once", "1", "--sessions", "1", "--duration", "3"),
    "mooncake/conversation_trace.jsonl": ("--sessions", "40"),
    "azure/AzureLLMInferenceTrace_conv.csv": ("--sessions", "40"),
    "servegen/deepseek-r1.tar.xz": ("--sessions", "40"),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_traces_are_replayed_where_they_are(name: str, tmp_path: Path) -> None:
    if not (TRACES / name).exists():
        pytest.skip("the public traces are not here")
    _, found = replayed(TRACES / name, tmp_path, *PUBLIC[name], scale=0.01)
    assert found["prompt_tokens"] > 0 and found["outputs"] > 0
