"""Several P behind one line, in virtual time: links, lessees and the line's owner, with nothing else of the house."""

from dataclasses import dataclass, field
from functools import partial

from pdd.adapters.kv_memory import MemoryKvLink
from pdd.adapters.kv_memory_lines import MemoryLines
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.effects import CloseTransfer, Effect, ExpectKv, OfferKv, OpenTransfer, PaceLine, Send
from pdd.core.events import Event, KvCloseAcked, LineWanted
from pdd.core.ids import Epoch, Key, Peer, RequestId, Role, TransferId
from pdd.core.line_owner import LineOwner
from pdd.core.messages import LineLease, LineWants
from pdd.core.roles.lessee import Lessee
from pdd.ports import KvChunk, KvShape
from pdd.sim.world import World
from tests.contract.kv_bench import SECRET, Pages

SHAPE = KvShape(layers=2, kv_heads=4, head_dim=64, dtype="bfloat16")  # 2 KiB a token
RATE = 5e6
ROUTER = Peer("a", Role.ROUTER, "r", 1)
MAIN = Peer("b", Role.MAIN, "md", 1)
BUS_S = 0.001


class Zeros(Pages):
    """Any token of any sequence."""

    def __init__(self) -> None:
        self.kv_shape = SHAPE
        self._zeros = memoryview(bytes(64 << 20))

    def export_kv(self, key: Key, start: int, stop: int) -> KvChunk:
        return KvChunk(start, stop, SHAPE, self._zeros[: (stop - start) * SHAPE.bytes_per_token])


@dataclass
class Site:
    """Site A with its P, and the receiver at B. `owner` is None: nobody leases, as when the router is gone."""

    senders: int
    rate: float = RATE
    owner: LineOwner | None = field(default_factory=LineOwner)
    done: dict[TransferId, float] = field(default_factory=dict)
    began: dict[TransferId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World()
        self.lines = MemoryLines(self.world)
        self.lines.shape("a", "b", self.rate, 0.05)
        self.peers = [Peer("a", Role.PREFILL, f"p{number}", 1) for number in range(self.senders)]
        self.links = {peer: self._link(peer) for peer in (*self.peers, MAIN)}
        self.lessees = {peer: Lessee() for peer in self.peers}
        self._tick()

    def _link(self, peer: Peer) -> MemoryKvLink:
        return MemoryKvLink(
            peer, self.lines, address=peer.name, fingerprint="f", source=Zeros(), notes=MemoryNotes(),
            sink=lambda event: self._hear(peer, event), staging_bytes=1 << 30, owned=True,
        )  # fmt: skip

    def _tick(self) -> None:
        if self.owner:
            self._perform(self.owner.tick(self.world.now()))
        self.world.call_later(0.1, self._tick)

    def _hear(self, peer: Peer, event: Event) -> None:
        match event:
            case KvCloseAcked(transfer):
                self.done[transfer] = self.world.now() - self.began[transfer]
            case LineWanted(wants):
                assert self.lessees[peer].wanted(event, [ROUTER]) == [Send(ROUTER, wants)]
                self.world.call_later(BUS_S, lambda: self._ask(peer, wants))

    def _ask(self, peer: Peer, wants: LineWants) -> None:
        if self.owner:
            self._perform(self.owner.handle(peer, wants, self.world.now()))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, LineLease() as lease):
                    self.world.call_later(BUS_S, partial(self._leased, to, lease))

    def _leased(self, peer: Peer, lease: LineLease) -> None:
        for effect in self.lessees[peer].leased(ROUTER, lease, self.world.now()):
            assert isinstance(effect, PaceLine)
            self.links[peer].pace(effect)

    # -- what tests say -----------------------------------------------------------------------------------------------

    def send(self, sender: int, megabytes: float, name: str) -> TransferId:
        transfer, tokens = TransferId(name), int(megabytes * 1e6) // SHAPE.bytes_per_token
        self.began[transfer] = self.world.now()
        self.links[MAIN].expect(ExpectKv(transfer, Epoch(1), SECRET, 0, tokens))
        link, key = self.links[self.peers[sender]], Key(RequestId(name), Epoch(1))
        link.open_transfer(OpenTransfer(transfer, key, MAIN, "md", SECRET, "", near=False, tokens=tokens))
        link.offer(OfferKv(transfer, 0, tokens))
        link.close_transfer(CloseTransfer(transfer, b""))
        return transfer

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now() + seconds)

    def warm(self) -> None:
        """Everybody has measured the line."""
        for number in range(self.senders):
            self.send(number, 10, f"warm{number}")
            self.run(4)


def test_the_shorter_transfer_of_another_sender_goes_first() -> None:
    site = Site(2)
    site.warm()
    long = site.send(0, 60, "long")
    site.run(2)
    short = site.send(1, 10, "short")
    site.run(40)
    assert site.done[short] < 1.35 * 10e6 / RATE  # shared equally it would take twice as long
    assert site.done[long] < 1.1 * 70e6 / RATE


def test_without_leases_the_line_is_shared() -> None:
    site = Site(2, owner=None)
    site.warm()
    site.send(0, 60, "long")
    site.run(2)
    short = site.send(1, 10, "short")
    site.run(40)
    assert site.done[short] > 1.6 * 10e6 / RATE


def test_a_small_transfer_of_one_sender_feels_anothers_bulk_little() -> None:
    site = Site(2)
    site.warm()
    alone = site.send(1, 0.2, "alone")
    site.run(2)
    site.send(0, 60, "bulk")
    site.run(2)
    beside = []
    for number in range(5):
        beside.append(site.send(1, 0.2, f"beside{number}"))
        site.run(1)
    # A line that serves in order, and holds what one window of bulk may have on it.
    assert sorted(site.done[one] for one in beside)[2] < site.done[alone] + 0.35


def test_the_line_stays_busy_while_the_owner_orders_it() -> None:
    site = Site(4)
    site.warm()
    began = site.world.now()
    for number in range(12):
        site.send(number % 4, (30, 5, 12, 8)[number % 4], f"t{number}")
    site.run(60)
    assert len(site.done) == 16
    total = 3 * (30 + 5 + 12 + 8) * 1e6
    last = max(site.began[one] + seconds for one, seconds in site.done.items()) - began
    assert last < 1.12 * total / RATE


def test_a_slow_line_that_nobody_has_measured_is_used_from_the_first_transfer_on() -> None:
    """No transfer is long enough to show the line's rate by itself, and all of them together are late."""
    slow = 250e3
    site = Site(2, slow)
    sizes = (0.6, 0.3, 0.5, 0.4)
    for number in range(24):
        site.send(number % 2, sizes[number % 4], f"t{number}")
        site.run(1)
    total = 6 * sum(sizes) * 1e6
    assert site.lines.bytes_carried["a", "b"] > 0.85 * 24 * slow
    site.run(1.15 * total / slow - 24)
    assert len(site.done) == 24


def test_when_the_owner_is_gone_the_long_one_gets_its_share_back() -> None:
    site = Site(2)
    site.warm()
    site.send(0, 60, "long")
    site.run(1)
    site.send(1, 30, "short")
    site.run(1)
    site.owner = None
    before = site.lines.bytes_carried["a", "b"]
    site.run(8)
    assert site.lines.bytes_carried["a", "b"] - before > 0.85 * 8 * RATE  # nobody waits for a lease


def test_nothing_starves() -> None:
    """A long one keeps getting through while short ones keep coming that would fill the line."""
    site = Site(3)
    site.warm()
    long = site.send(0, 40, "long")
    for number in range(60):
        site.send(1 + number % 2, 4, f"s{number}")
        site.run(0.85)
    site.run(60)
    assert site.done[long] < 60
