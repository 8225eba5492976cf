"""The memory budget of an engine is kept: what it takes in the end, every page written and every row at work, is what it was given."""

import subprocess
import sys
from pathlib import Path

import pytest

from pdd.adapters.engine_torch import create_torch
from pdd.core.errors import EngineError
from pdd.ports import KvShape
from pdd.sim.world import World
from tests.models import make_tiny_model, tiny_model

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 100_000_000
OWN = 40_000_000


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_full_engine_takes_what_it_was_given_and_little_more(dtype: str, tmp_path: Path) -> None:
    """`OWN`: what an engine's thread and its library calls keep for themselves, whatever the budget."""
    model = make_tiny_model(tmp_path, num_key_value_heads=4, head_dim=128)  # much KV, little work
    command = [sys.executable, "-m", "tests.contract.torch_memory", str(model), dtype, str(BUDGET)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert not found.returncode, found.stderr
    taken, pages = map(int, found.stdout.split())
    page = 16 * KvShape(4, 4, 128, dtype).bytes_per_token
    assert 0.7 * BUDGET < pages * page < BUDGET
    assert 0.8 * BUDGET < taken < BUDGET + OWN


def test_a_budget_too_small_for_one_page_is_refused_with_what_is_needed() -> None:
    with pytest.raises(EngineError, match=r"1000000 bytes leave no page of 16 tokens beside \d+ bytes of weights"):
        create_torch(
            tiny_model(), fingerprint="f", sink=print, clock=World(), post=lambda do: do(), memory_bytes=1_000_000
        )
