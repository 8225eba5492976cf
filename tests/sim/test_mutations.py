"""Each rule of the protocol is there for a reason: without it some law breaks in some storm, or a scene waits too long."""

import pytest

from pdd.plan.laws import Violation
from pdd.plan.storm import Storm
from tests.sim.mutations import MUTATIONS, SWITCHES, Mutation
from tests.sim.scenes import SCENES, Scenery

MORE_SEEDS = range(150)
ALL = MUTATIONS | SWITCHES


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_scene_ends_in_time(scene: Scenery) -> None:
    scene()


@pytest.mark.parametrize("name", ALL)
def test_a_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = ALL[name]
    mutation.patch(monkeypatch)
    assert caught(mutation), f"no law noticed: {name}"


def caught(mutation: Mutation) -> bool:
    if mutation.scene:
        with pytest.raises(Violation) as broken:
            mutation.scene()
        return broken.value.law in mutation.laws
    return any(broken_law(seed) in mutation.laws for seed in (*mutation.seeds, *MORE_SEEDS))


def broken_law(seed: int) -> str:
    try:
        Storm(seed).run()
    except Violation as violation:
        return violation.law
    return ""


def test_every_switch_of_the_model_is_here() -> None:
    flags = (
        "inc cmdrep ticketrep mrrep yieldrep routeryield taken tail askall stall backoff keepids epochmem cutpen eosfin"
        " bufdrop absidx pauseyield leaseorder beatlist castcheck relabel tomb beatpen"
    )
    assert list(SWITCHES) == flags.split()
