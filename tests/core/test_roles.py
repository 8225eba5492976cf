"""The worker roles, judged by their laws: every phase x every event, and what no peer can do to them."""

from enum import Enum
from typing import Any

import pytest

from pdd.core import events as ev
from pdd.core import messages as msg
from pdd.core.effects import Broadcast, CloseSequence, Count, DropKv, Effect, ExpectKv, Hush, OpenSequence, Send, Speak
from pdd.core.errors import IllegalEvent
from pdd.core.ids import Epoch, Key, Peer, RequestId, Role, TransferId
from pdd.core.roles.held import Computed, Wrote
from pdd.core.roles.main_decode import MainDecode
from pdd.core.roles.prefill import Prefill
from pdd.core.roles.relay_decode import RelayDecode
from pdd.core.roles.relaying import Pen, RelayState
from pdd.core.roles.worker import Worker
from pdd.core.sampling import Finish, Sampling
from pdd.core.timeouts import TimeOuts

R = RequestId("r1")
E1 = Epoch(1)
KEY = Key(R, E1)
ROUTER = Peer("a", Role.ROUTER, "router", 1)
PEERS = {
    Role.PREFILL: Peer("a", Role.PREFILL, "p", 1),
    Role.RELAY: Peer("a", Role.RELAY, "l", 1),
    Role.MAIN: Peer("b", Role.MAIN, "m", 1),
}
CAST = msg.Cast(PEERS[Role.PREFILL], PEERS[Role.RELAY], PEERS[Role.MAIN])
CARD = msg.WorkerCard("f", 4096, 8, 64, "127.0.0.1:1")
KINDS: dict[Role, type[Worker[Any]]] = {Role.PREFILL: Prefill, Role.RELAY: RelayDecode, Role.MAIN: MainDecode}
PHASES = [(role, phase) for role, kind in KINDS.items() for phase in type(kind.OPENING)]
PHASES += [(role, pen) for role in (Role.PREFILL, Role.RELAY) for pen in Pen]


def worker(role: Role) -> Worker[Any]:
    return KINDS[role](PEERS[role], CARD, TimeOuts(), b"seed")


def command(role: Role, epoch: Epoch = E1, cast: msg.Cast = CAST, **more: Any) -> msg.Assignment:
    return KINDS[role].COMMAND(R, epoch, cast, (5, 6, 7), 3, Sampling(max_tokens=9), **more)


def hear(machine: Worker[Any], sender: Peer, message: msg.Message, now: float = 1.0) -> list[Effect]:
    return machine.handle(ev.Heard(sender, machine.me, message), now)


def in_phase(role: Role, phase: Enum) -> Worker[Any]:
    """A worker that holds the request in this phase, as far as the tables can tell."""
    machine = worker(role)
    machine.start(0.0)
    hear(machine, ROUTER, command(role))
    held = machine.held[R]
    transfer = TransferId("t")
    held.phase, held.accepted = phase, True
    held.sent_at |= {"yield": 0.5, "ready": 0.5, "expect": 0.5, "ticket": 0.5}
    machine.by_transfer[transfer] = held
    if role is not Role.PREFILL:
        held.transfer, held.address, held.token_0 = transfer, "x:1", msg.Written(R, E1, 0, (1,))
    if phase.name in ("YIELDED", "SPEAKING", "RELAYING", "PAUSED", "FINISHED", "SHADOWING", "SPOKEN", "SENT"):
        held.out, held.own_start, held.whole = [1], 0, True
    if phase.name == "YIELDED":
        held.fence = 1
    return machine


def own_events() -> list[ev.Event]:
    transfer = TransferId("t")
    step = ev.StepDone(computed=((KEY, 3),))
    wrote = ev.StepDone(written=(msg.Written(R, E1, 1, (4,)),))
    return [
        ev.SequenceOpened(KEY, 0),
        ev.SequenceRefused(KEY, "full"),
        ev.KvImported(KEY),
        ev.KvImportFailed(KEY, "memory"),
        step,
        wrote,
        ev.KvExpected(transfer, "x:1"),
        ev.KvRefused(transfer, "staging"),
        ev.KvLanded(transfer, 0, 1),
        ev.KvDamaged(transfer, "checksum"),
        ev.KvClosed(transfer, b"no message"),
        ev.KvAcked(transfer, 0, 1),
        ev.KvCloseAcked(transfer, 1, 0.1),
        ev.TransferFailed(transfer, "cut"),
    ]


def peer_messages() -> list[msg.Message]:
    return [
        msg.Release(R, Epoch(0)),
        msg.Ask(R, E1, 0),
        msg.Cut(R, E1),
        msg.StopSending(R, E1, PEERS[Role.MAIN]),
        msg.Accepted(R, E1, 0, 0),
        msg.Tokens((msg.Written(R, E1, 1, (4,)),)),
        msg.Ticket(R, E1, TransferId("t2"), 0, ((0, 3),), "x:1", b"s"),
        msg.MainReady(R, E1, 0),
        msg.Yield(R, E1, 1, msg.Written(R, E1, 0, (1,))),
        msg.Taken(R, E1),
        msg.SnapshotWanted(),
        msg.Found(R, ()),
    ]


def row_type(event: ev.Event) -> type:
    if isinstance(event, ev.StepDone):
        return Computed if event.computed else Wrote
    return type(event)


@pytest.mark.parametrize(("role", "phase"), PHASES, ids=lambda value: getattr(value, "name", str(value)))
@pytest.mark.parametrize("event", own_events(), ids=lambda event: row_type(event).__name__)
def test_an_own_event_has_a_row_or_raises_and_changes_nothing(role: Role, phase: Enum, event: ev.Event) -> None:
    machine = in_phase(role, phase)
    before = repr(machine.held[R])
    if (phase, row_type(event)) in machine.ROWS:
        machine.handle(event, 1.0)
    elif isinstance(event, ev.StepDone):
        with pytest.raises(IllegalEvent):
            machine.handle(event, 1.0)
    else:
        with pytest.raises(IllegalEvent):
            machine.handle(event, 1.0)
        assert repr(machine.held[R]) == before


@pytest.mark.parametrize(("role", "phase"), PHASES, ids=lambda value: getattr(value, "name", str(value)))
@pytest.mark.parametrize("message", peer_messages(), ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("sender", [ROUTER, *PEERS.values(), Peer("c", Role.MAIN, "stranger", 1)], ids=str)
def test_no_peer_can_crash_a_role(role: Role, phase: Enum, message: msg.Message, sender: Peer) -> None:
    machine = in_phase(role, phase)
    hear(machine, sender, message)


@pytest.mark.parametrize("role", KINDS)
def test_every_row_names_a_method_of_its_role(role: Role) -> None:
    for name in KINDS[role].ROWS.values():
        assert callable(getattr(KINDS[role], name))


@pytest.mark.parametrize("role", KINDS)
def test_a_message_for_another_life_is_dropped_and_counted(role: Role) -> None:
    machine = worker(role)
    old = Peer(machine.me.site, machine.me.role, machine.me.name, 0)
    effects = machine.handle(ev.Heard(ROUTER, old, command(role)), 1.0)
    assert not machine.held
    assert Count("pdd_messages_dropped_total", (("reason", "incarnation"),)) in effects


@pytest.mark.parametrize("role", KINDS)
def test_a_repeated_command_is_answered_again_and_starts_nothing(role: Role) -> None:
    machine = worker(role)
    assert any(isinstance(e, OpenSequence) for e in hear(machine, ROUTER, command(role)))
    machine.handle(ev.SequenceOpened(KEY, 0), 1.0)
    again = hear(machine, ROUTER, command(role))
    assert [type(e.message) for e in again if isinstance(e, Send)] == [msg.Accepted]
    assert not any(isinstance(e, OpenSequence) for e in again)


@pytest.mark.parametrize("role", KINDS)
def test_a_late_command_of_an_ended_request_starts_nothing(role: Role) -> None:
    machine = worker(role)
    hear(machine, ROUTER, msg.Release(R, E1))
    assert not any(isinstance(e, OpenSequence) for e in hear(machine, ROUTER, command(role)))
    assert any(isinstance(e, OpenSequence) for e in hear(machine, ROUTER, command(role, Epoch(2))))


@pytest.mark.parametrize(("role", "phase"), PHASES, ids=lambda value: getattr(value, "name", str(value)))
def test_release_gives_everything_back_from_every_phase(role: Role, phase: Enum) -> None:
    machine = in_phase(role, phase)
    effects = hear(machine, ROUTER, msg.Release(R, E1))
    assert CloseSequence(KEY) in effects
    if role is not Role.PREFILL:
        assert DropKv(TransferId("t")) in effects
    assert not machine.held and Send(ROUTER, msg.Released(R, E1)) in effects


@pytest.mark.parametrize(("role", "phase"), PHASES, ids=lambda value: getattr(value, "name", str(value)))
def test_a_lease_that_nobody_renews_gives_everything_back(role: Role, phase: Enum) -> None:
    machine = in_phase(role, phase)
    late = 1.0 + TimeOuts().lease_s + 1.0
    effects = machine.handle(ev.TimerFired(), late)
    assert not machine.held and CloseSequence(KEY) in effects
    assert Count("pdd_leases_expired_total") in effects


@pytest.mark.parametrize("role", KINDS)
def test_a_renewed_lease_holds_as_long_as_it_is_renewed(role: Role) -> None:
    machine = in_phase(role, PHASES[0][1] if role is Role.PREFILL else KINDS[role].OPENING)
    for second in range(1, 40):
        hear(machine, ROUTER, msg.Renew({R: E1}), float(second))
    assert R in machine.held


@pytest.mark.parametrize("role", KINDS)
def test_who_was_stopped_for_longer_than_a_lease_acts_on_nothing_that_came_meanwhile(role: Role) -> None:
    machine = in_phase(role, KINDS[role].OPENING)
    effects = machine.handle(ev.SequenceOpened(KEY, 0), 1.0 + TimeOuts().lease_s + 1.0)
    assert not machine.held and CloseSequence(KEY) in effects
    assert not [effect for effect in effects if isinstance(effect, Send | Speak | ExpectKv)]


def relaying() -> RelayDecode:
    machine = in_phase(Role.RELAY, KINDS[Role.RELAY].OPENING)
    assert isinstance(machine, RelayDecode)
    machine.handle(ev.SequenceOpened(KEY, 0), 1.0)
    transfer = machine.held[R].transfer
    machine.handle(ev.KvExpected(transfer, "x:1"), 1.0)
    machine.handle(ev.KvLanded(transfer, 0, 3), 1.0)
    held = machine.held[R]
    held.token_0 = msg.Written(R, E1, 0, (11,))
    held.importing = True
    effects = machine.handle(ev.KvImported(KEY), 1.0)
    assert Speak(KEY, None) in effects
    return machine


def yields(effects: list[Effect]) -> list[msg.Message]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, msg.Yield)]


def test_the_relay_never_speaks_at_or_after_its_fence() -> None:
    machine = relaying()
    machine.handle(ev.StepDone(written=(msg.Written(R, E1, 1, (12,)),)), 1.1)
    assert Speak(KEY, 3) in hear(machine, PEERS[Role.MAIN], msg.MainReady(R, E1, 1), 1.2)
    effects = machine.handle(ev.StepDone(written=(msg.Written(R, E1, 2, (13,)),)), 1.25)
    assert Hush(KEY) in effects
    assert yields(effects) == [msg.Yield(R, E1, 3, msg.Written(R, E1, 0, (11, 12, 13)))] * 2
    late = machine.handle(ev.StepDone(written=(msg.Written(R, E1, 3, (14,)),)), 1.3)
    assert not [e for e in late if isinstance(e, Send)]
    assert machine.held[R].out == [11, 12, 13]


def test_a_relays_bound_falls_with_its_load_and_is_counted_where_it_holds() -> None:
    """Eight places, a bound of 80 outputs: what it may write before it asks again, and whether it may then go on."""
    granted, counted = [], []
    for running in range(9):
        machine = worker(Role.RELAY)
        machine.start(0.0)
        machine.handle(ev.StepDone(load=msg.EngineLoad(running=running)), 0.5)
        command = msg.PrepareRelay(R, E1, CAST, (5, 6, 7), 3, Sampling(max_tokens=900), relay_bound=80)
        hear(machine, ROUTER, command)
        held = machine.held[R]
        held.out, held.whole = [1], True
        machine.begin_relay(held)  # type: ignore[attr-defined]
        granted.append(machine.bound(held))  # type: ignore[attr-defined]
        step = ev.StepDone(written=(msg.Written(R, E1, 1, (7,) * 79),), load=msg.EngineLoad(running=running))
        names = [effect.name for effect in machine.handle(step, 1.5) if isinstance(effect, Count)]
        counted.append("pdd_relay_paused_total" in names)
    assert granted == [80, 70, 60, 50, 40, 30, 20, 10, 10]
    assert counted == [False] * 4 + [True] * 5


@pytest.mark.parametrize(
    ("others", "free_pages", "taken"), [(0, 100, True), (3, 100, True), (4, 100, False), (0, 50, True), (0, 49, False)]
)
def test_a_warm_up_is_taken_only_where_half_of_everything_is_free(others: int, free_pages: int, taken: bool) -> None:
    machine = worker(Role.MAIN)
    machine.start(0.0)
    for i in range(others):
        hear(machine, ROUTER, msg.PrepareMain(RequestId(f"o{i}"), E1, CAST, (5, 6), 2, Sampling(max_tokens=9)))
    machine.handle(ev.StepDone(load=msg.EngineLoad(free_pages=free_pages, total_pages=100)), 0.5)
    command = msg.PrepareMain(R, E1, CAST, (5, 6, 7), 3, Sampling(max_tokens=9), warm_up=True)
    effects = hear(machine, ROUTER, command)
    assert any(isinstance(effect, OpenSequence) for effect in effects) is taken
    assert any(isinstance(e, Send) and isinstance(e.message, msg.Refused) for e in effects) is not taken


def test_a_warm_up_that_gave_its_place_up_does_not_begin_again_by_its_repeated_command() -> None:
    """Its first sequence may still be on the way from the engine."""
    machine = worker(Role.MAIN)
    machine.start(0.0)
    machine.handle(ev.StepDone(load=msg.EngineLoad(free_pages=9, total_pages=9)), 0.5)
    command = msg.PrepareMain(R, E1, CAST, (5, 6, 7), 3, Sampling(max_tokens=9), warm_up=True)
    hear(machine, ROUTER, command)
    machine.give_up_warm_up()
    assert not [effect for effect in hear(machine, ROUTER, command) if isinstance(effect, OpenSequence)]
    assert not machine.held
    hear(machine, ROUTER, msg.PrepareMain(R, Epoch(2), CAST, (5, 6, 7), 3, Sampling(max_tokens=9)))
    assert machine.held[R].epoch == 2


def test_a_relay_measures_how_fast_main_decode_extends_since_its_first_report() -> None:
    relay = RelayState()
    relay.report(1, 1.15)
    assert relay.extend_tokens_per_s == 0.0
    relay.report(4, 1.45)
    relay.report(3, 1.5)  # an older one
    assert relay.extend_tokens_per_s == pytest.approx(3 / 0.35)
    assert (relay.main_known, relay.reports) == (4, 3)


def test_a_yield_does_not_wait_for_a_token_that_does_not_come() -> None:
    """RLD's engine has no page for it, or its step is long."""
    machine = relaying()
    hear(machine, PEERS[Role.MAIN], msg.MainReady(R, E1, 1), 1.2)
    assert not yields(machine.handle(ev.TimerFired(), 1.25))
    assert yields(machine.handle(ev.TimerFired(), 1.6)) == [msg.Yield(R, E1, 1, msg.Written(R, E1, 0, (11,)))] * 2


def test_a_cut_takes_back_a_yield_that_waits_for_its_token() -> None:
    machine = relaying()
    hear(machine, PEERS[Role.MAIN], msg.MainReady(R, E1, 1), 1.2)
    effects = hear(machine, ROUTER, msg.Cut(R, E1), 1.21)
    assert Send(ROUTER, msg.CutAnswer(R, E1, True)) in effects and Speak(KEY, None) in effects
    later = machine.handle(ev.StepDone(written=(msg.Written(R, E1, 1, (12,)),)), 1.3)
    assert not yields(later + machine.handle(ev.TimerFired(), 2.0))


def test_a_yield_is_repeated_until_each_has_answered() -> None:
    machine = relaying()
    hear(machine, PEERS[Role.MAIN], msg.MainReady(R, E1, 1), 1.2)
    assert yields(machine.handle(ev.StepDone(written=(msg.Written(R, E1, 1, (12,)),)), 1.3))

    def repeated(now: float) -> list[Peer]:
        effects = machine.handle(ev.TimerFired(), now)
        return [e.to for e in effects if isinstance(e, Send) and isinstance(e.message, msg.Yield)]

    assert repeated(2.0) == [PEERS[Role.MAIN], ROUTER]
    hear(machine, PEERS[Role.MAIN], msg.Taken(R, E1), 2.1)
    assert repeated(3.0) == [ROUTER]
    hear(machine, ROUTER, msg.Taken(R, E1), 3.1)
    assert repeated(4.0) == []


def test_after_its_end_the_relay_never_yields() -> None:
    machine = relaying()
    machine.handle(ev.StepDone(written=(msg.Written(R, E1, 1, (2,), (), Finish("stop", 2)),)), 1.1)
    effects = hear(machine, PEERS[Role.MAIN], msg.MainReady(R, E1, 1), 1.2)
    assert not [e for e in effects if isinstance(e, Send) and isinstance(e.message, msg.Yield)]


def test_a_cut_is_promised_before_a_yield_and_denied_after() -> None:
    machine = relaying()
    assert Send(ROUTER, msg.CutAnswer(R, E1, True)) in hear(machine, ROUTER, msg.Cut(R, E1))
    effects = hear(machine, PEERS[Role.MAIN], msg.MainReady(R, E1, 1), 1.2)
    assert not [e for e in effects if isinstance(e, Send) and isinstance(e.message, msg.Yield)]
    other = relaying()
    hear(other, PEERS[Role.MAIN], msg.MainReady(R, E1, 1), 1.2)
    assert yields(other.handle(ev.StepDone(written=(msg.Written(R, E1, 1, (12,)),)), 1.3))
    assert Send(ROUTER, msg.CutAnswer(R, E1, False)) in hear(other, ROUTER, msg.Cut(R, E1))


def test_a_damaged_frame_raises_the_tickets_serial() -> None:
    machine = in_phase(Role.MAIN, KINDS[Role.MAIN].OPENING)
    machine.handle(ev.SequenceOpened(KEY, 0), 1.0)
    transfer = machine.held[R].transfer
    first = machine.handle(ev.KvExpected(transfer, "x:1"), 1.0)
    machine.handle(ev.KvLanded(transfer, 0, 2), 1.0)
    second = machine.handle(ev.KvDamaged(transfer, "checksum"), 1.1)
    tickets = [e.message for e in first + second if isinstance(e, Send) and isinstance(e.message, msg.Ticket)]
    assert [(t.serial, t.missing) for t in tickets] == [(0, ((0, 3),)), (1, ((2, 3),))]


def test_a_worker_beats_with_everything_it_holds() -> None:
    machine = in_phase(Role.MAIN, KINDS[Role.MAIN].OPENING)
    effects = machine.handle(ev.TimerFired(), 5.0)
    beats = [e.message for e in effects if isinstance(e, Broadcast) and isinstance(e.message, msg.Beat)]
    assert [held.request for beat in beats for held in beat.held] == [R]
