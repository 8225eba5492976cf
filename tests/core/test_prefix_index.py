"""The prefix index by its laws: it claims nothing that a holder did not say, and what was lost on the way is had again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core import messages as msg
from pdd.core.blocks import HASH_BYTES, pack
from pdd.core.effects import Count, Effect, KeepHolder, ReplaceBlocks, Send, StoreBlocks
from pdd.core.events import Heard, PrefixFound, StoreFailed
from pdd.core.ids import BlockHash, Peer, RequestId, Role
from pdd.core.roles.prefix_index import PrefixIndex
from pdd.core.timeouts import TimeOuts

ME = Peer("a", Role.INDEX, "index", 1)
P1, P1_AGAIN = Peer("a", Role.PREFILL, "p1", 1), Peer("a", Role.PREFILL, "p1", 2)
ROUTER = Peer("a", Role.ROUTER, "router", 1)
CARD = msg.WorkerCard("f", 4096, 8, 16)
T = TimeOuts()


def block(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(HASH_BYTES, "big"))


class Told:
    """An index, and what its store would hold by its word."""

    def __init__(self) -> None:
        self.index, self.now = PrefixIndex(ME, T), 0.0
        self.held: dict[BlockHash, None] = {}
        self.index.start(0.0)

    def hear(self, sender: Peer, message: msg.Message, to: Peer | None = None) -> list[Effect]:
        return self.do(Heard(sender, to, message))

    def do(self, event: Any) -> list[Effect]:
        self.now += T.retry_s  # so that it may ask again
        effects = self.index.handle(event, self.now)
        for effect in effects:
            match effect:
                case StoreBlocks(_, stored, removed):
                    self.held |= dict.fromkeys(stored)
                    self.held = {name: None for name in self.held if name not in removed}
                case ReplaceBlocks(_, blocks):
                    self.held = dict.fromkeys(blocks)
        return effects

    def change(self, number: int, stored: list[int], removed: list[int] | None = None, by: Peer = P1) -> list[Effect]:
        return self.hear(by, msg.BlocksChanged(number, pack([*map(block, stored)]), pack([*map(block, removed or [])])))

    def snapshot(self, number: int, blocks: list[int], by: Peer = P1) -> list[Effect]:
        return self.hear(by, msg.Snapshot(number, pack([*map(block, blocks)])), ME)


def asked(effects: list[Effect]) -> list[Peer]:
    return [
        effect.to for effect in effects if isinstance(effect, Send) and isinstance(effect.message, msg.SnapshotWanted)
    ]


def counted(effects: list[Effect], name: str) -> int:
    return sum(effect.name == name for effect in effects if isinstance(effect, Count))


def test_whoever_is_not_known_is_asked_for_everything() -> None:
    told = Told()
    beat = msg.Beat(1, CARD, (), msg.EngineLoad())
    effects = told.hear(P1, beat)
    assert asked(effects) == [P1] and KeepHolder(P1, T.lease_s) in effects
    told.snapshot(7, [1, 2])
    assert asked(told.hear(P1, beat)) == [] and list(told.held) == [block(1), block(2)]


@pytest.mark.parametrize("lost", ["stored", "removed"])
def test_a_change_that_was_lost_is_noticed_by_the_next_one_and_had_again(lost: str) -> None:
    """CASE 13."""
    told = Told()
    told.snapshot(1, [1, 2])
    effects = told.change(3, [4])  # the second was lost
    assert asked(effects) == [P1] and counted(effects, "pdd_index_gaps_total") == 1
    told.snapshot(3, [1, 2, 3, 4] if lost == "stored" else [1, 4])
    assert set(told.held) == ({*map(block, (1, 2, 3, 4))} if lost == "stored" else {block(1), block(4)})


def test_a_change_that_comes_twice_counts_once() -> None:
    told = Told()
    told.snapshot(1, [])
    told.change(2, [5])
    told.change(3, [], [5])
    assert counted(told.change(2, [5]), "pdd_messages_dropped_total") == 1 and not told.held


def test_a_former_life_says_nothing_any_more_and_the_new_one_starts_empty() -> None:
    told = Told()
    told.snapshot(5, [1, 2])
    assert asked(told.change(1, [9], by=P1_AGAIN)) == [P1_AGAIN], "its changes are numbered anew"
    told.snapshot(1, [9], by=P1_AGAIN)
    assert list(told.held) == [block(9)]
    told.change(6, [3])
    told.snapshot(6, [1, 2, 3])
    assert list(told.held) == [block(9)]


def test_a_store_that_lost_a_change_makes_its_holder_be_asked_anew() -> None:
    told = Told()
    told.snapshot(1, [1])
    told.do(StoreFailed("timeout", holder=P1))
    assert asked(told.change(2, [2])) == [P1]


def test_a_lookup_is_answered_whatever_the_store_does() -> None:
    told, q = Told(), RequestId("q")
    found = told.do(PrefixFound(q, ROUTER, (("p1", 1, 3),)))
    assert Send(ROUTER, msg.Found(q, (("p1", 1, 3),))) in found
    assert Send(ROUTER, msg.Found(q, ())) in told.do(StoreFailed("timeout", query=q, asker=ROUTER))


Step = st.tuples(
    st.lists(st.integers(1, 6), max_size=3), st.lists(st.integers(1, 6), max_size=3), st.sampled_from("dlr")
)


@given(st.lists(Step, max_size=30))
def test_whatever_is_lost_or_repeated_the_claims_of_an_index_in_step_are_the_holders(steps: list[Any]) -> None:
    """d: delivered, l: lost, r: delivered twice. The holder answers each question with a snapshot."""
    told, mine = Told(), dict[int, None]()
    told.snapshot(0, [])
    for number, (stored, removed, fate) in enumerate(steps, 1):
        mine = {one: None for one in (mine | dict.fromkeys(stored)) if one not in removed}
        times = {"d": 1, "l": 0, "r": 2}[fate]
        for _ in range(times):
            if asked(told.change(number, stored, removed)):
                told.snapshot(number, list(mine))
        if times:
            assert set(told.held) == {block(one) for one in mine}
