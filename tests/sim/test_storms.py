"""The protocol under random fault schedules: every law in every storm, every storm the same again, every life replayed."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from hashlib import blake2b
from typing import Any

import pytest

from pdd.core import effects as fx
from pdd.core import events as ev
from pdd.plan.coverage import Coverage
from pdd.plan.faults import Faults
from pdd.plan.house import House
from pdd.plan.seeds import outcome, outcomes, shrunk, told
from pdd.plan.stages import Stage
from pdd.plan.storm import Storm
from pdd.sim.world import Node

SEEDS = 1000


@pytest.mark.timeout(900)
def test_a_thousand_storms_break_no_law() -> None:
    counts, coverage, broken = Counter[str](), Coverage(), dict[int, str]()
    for one in outcomes(range(SEEDS), jobs=min(2, os.cpu_count() or 1)):
        counts.update(one.counts)
        coverage.add(one.coverage)
        if one.law:
            broken[one.seed] = one.text
    assert not broken, f"pdd storms --start {min(broken)} --n 1 tells the story; {broken}"
    assert counts["end: length"] > 2 * SEEDS and counts["end: stop"] > SEEDS / 4
    check_coverage(coverage)


def check_coverage(coverage: Coverage) -> None:
    """What a thousand storms must have been through; `pdd storms` lists what they have not."""
    assert len(coverage.untaken()) <= 1, coverage.untaken()
    unmet = coverage.unmet()
    kinds = {kind for kind, _ in coverage.faults}
    assert len(kinds) >= 17 and len(unmet) <= len(kinds) * len(Stage) / 20, unmet


# -- the same again ----------------------------------------------------------------------------------------------------


def digest(seed: int) -> str:
    """Of every event of every machine, and of what each made it do."""
    seen = blake2b(digest_size=16)

    def watch(node: Node, event: ev.Event, effects: list[fx.Effect]) -> None:
        seen.update(repr((node.world.now(), node.machine.me, event, effects)).encode())  # type: ignore[attr-defined]

    Storm(seed, watch=watch).run()
    return seen.hexdigest()


def test_the_same_seed_gives_the_same_history_in_any_process() -> None:
    """Another process hashes strings otherwise: what hangs on the order of a set would show."""
    seeds = range(8)
    code = f"from tests.sim.test_storms import digest; print(*map(digest, {seeds!r}))"
    here = [digest(seed) for seed in seeds]
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == here


def test_leaving_an_entry_out_changes_no_other_draw() -> None:
    whole, one_less = Storm(3), Storm(3, frozenset({2}))
    assert one_less.entries == {number: name for number, name in whole.entries.items() if number != 2}
    assert one_less.house.spec == whole.house.spec


@pytest.mark.parametrize("seed", range(20, 28))
def test_every_recorded_life_replays_to_the_same_effects(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    born: dict[Node, Any] = {}
    done: dict[Node, list[str]] = {}

    def attached(original: Callable[..., Any]) -> Callable[..., Any]:
        def attach(self: House, node: Node, *more: Any) -> Any:
            born[node] = deepcopy(node.machine)
            return original(self, node, *more)

        return attach

    def watch(node: Node, event: ev.Event, effects: list[fx.Effect]) -> None:
        done.setdefault(node, []).append(repr(effects))

    monkeypatch.setattr(House, "_attach", attached(House._attach))
    Storm(seed, watch=watch).run()
    assert {type(machine).__name__ for machine in born.values()} >= {"Router", "Prefill", "MainDecode", "PrefixIndex"}
    for node, machine in born.items():
        (began, _), *rest = node.history
        replayed = [repr(machine.start(began)), *(repr(machine.handle(event, now)) for now, event in rest)]
        assert replayed == done[node]


# -- what is said of a failure -----------------------------------------------------------------------------------------


def test_a_failing_seed_shrinks_to_what_it_needs_and_tells_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """A house that loses every request when a client leaves: one request and its leaving are enough."""

    def leave(self: Faults, request: str) -> None:
        raise RuntimeError(f"{request} left")

    monkeypatch.setattr(Faults, "leave", leave)
    failed = next(one for one in map(outcome, range(50)) if one.law == "RuntimeError")
    short, without = shrunk(failed)
    kinds = {name.split(maxsplit=1)[0].rstrip(",") for name in short.entries.values()}
    assert short.law == "RuntimeError" and kinds <= {"leave", "submit"} and len(short.entries) <= 2
    assert set(short.entries) | without == set(failed.entries)
    assert "left" in told(short, without)
