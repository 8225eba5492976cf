"""A whole deployment in virtual time: the five machines over memory adapters and scripted engines, in one process.

The same machines as live, with the world replaced. Workers can be killed, restarted and paused; bus and lines can be made bad.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any

from ..adapters.bus_memory import MemoryHub
from ..adapters.engine_scripted import SMALL_SHAPE, Script, create_scripted, reference
from ..adapters.engine_steps import SteppingEngine
from ..adapters.kv_memory import MemoryKvLink
from ..adapters.kv_memory_lines import MemoryLines
from ..adapters.notes_memory import MemoryNotes
from ..adapters.prefix_memory import MemoryPrefixStore
from ..core.batch import Limits
from ..core.cost import EngineCost
from ..core.effects import Complete, Deliver, Effect, Reject
from ..core.events import Event, Heard, RequestEnded, RequestSubmitted
from ..core.ids import Peer, RequestId, Role
from ..core.messages import Beat, BlocksChanged, Message, WorkerCard
from ..core.roles.main_decode import MainDecode
from ..core.roles.prefill import Prefill
from ..core.roles.prefix_index import PrefixIndex
from ..core.roles.receiver import context_limit
from ..core.roles.relay_decode import RelayDecode
from ..core.roles.router import Router
from ..core.roles.worker import Worker
from ..core.routing import RoutingSettings
from ..core.sampling import Finish, Sampling
from ..core.singular import SingularSettings
from ..core.timeouts import TimeOuts
from ..ports import KvShape, Ports, Sink
from ..sim.world import Node, World

WORKERS: dict[Role, type[Worker[Any]]] = {
    Role.PREFILL: Prefill,
    Role.RELAY: RelayDecode,
    Role.MAIN: MainDecode,
}
FINGERPRINT = "scripted"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One worker's engine."""

    pages: int = 512
    page_size: int = 16
    max_sequences: int = 32
    max_context: int = 4096
    chunk_tokens: int = 64
    cost: EngineCost = EngineCost(step_s=0.02, prefill_tokens_per_s=2000.0, import_bytes_per_s=1e9)

    @property
    def limits(self) -> Limits:
        return Limits(self.pages, self.page_size, self.max_sequences, self.max_context, self.chunk_tokens)


@dataclass(frozen=True, slots=True)
class HouseSpec:
    """How many of each role stand where, and what lies between. `engines` goes by a worker's name, else by its role."""

    prefills: int = 1
    relays: int = 1
    mains: int = 1
    site_a: str = "a"
    site_b: str = "b"
    sites: dict[str, str] = field(default_factory=dict)  # workers, by name, that stand elsewhere than their role does
    engines: dict[str, EngineSpec] = field(default_factory=dict)
    script: Script = Script(mean_outputs=0)
    kv_shape: KvShape = SMALL_SHAPE
    line_bytes_per_s: float = 4000.0
    line_rtt_s: float = 0.05
    near_bytes_per_s: float = 1e9
    bus_delay_s: float = 0.0005
    answer_s: float = 0.0  # so much later a worker hears of its own engine; of its link, half as much
    answer_at: str = ""  # the only one who is so late; empty: all
    staging_bytes: int = 1 << 26
    wire_chunk_tokens: int = 32
    leased: bool = True  # the router owns the lines between sites
    timeouts: TimeOuts = TimeOuts()
    routing: RoutingSettings = RoutingSettings(line_bytes_per_s=5000.0, relay_price_s=0.5)
    policy: str = "one_shot"
    relay_bound: int = 0
    singular: SingularSettings = SingularSettings()
    max_inflight: int = 256


@dataclass(slots=True)
class Client:
    """What one client saw. `problem` holds a refusal; `spoken_at` the virtual time of each output."""

    asked: RequestSubmitted
    ids: list[int] = field(default_factory=list)
    spoken_at: list[float] = field(default_factory=list)
    finish: Finish | None = None
    complete: Complete | None = None
    problem: Reject | None = None
    gone: bool = False

    @property
    def ended(self) -> bool:
        return self.gone or self.finish is not None or self.problem is not None


class Clients:
    """The text port: every client of one router, each index checked as it comes."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.all: dict[RequestId, Client] = {}

    def deliver(self, effect: Deliver) -> None:
        client = self.all[effect.request]
        if effect.written.start != len(client.ids):
            raise AssertionError(f"{effect.request}: index {effect.written.start} after {len(client.ids)} outputs")
        client.ids.extend(effect.written.ids)
        client.spoken_at.extend([self.now()] * len(effect.written.ids))

    def complete(self, effect: Complete) -> None:
        client = self.all[effect.request]
        client.finish, client.complete = effect.finish, effect

    def reject(self, effect: Reject) -> None:
        self.all[effect.request].problem = effect


@dataclass(eq=False)
class Process:
    """One life of one process, and what it holds of the world."""

    node: Node
    me: Peer
    notes: MemoryNotes
    engine: SteppingEngine | None = None
    link: MemoryKvLink | None = None
    close_bus: Callable[[], None] = lambda: None

    def kill(self) -> None:
        self.node.alive = False
        self.close_bus()
        if self.link:
            self.link.close()


class House:
    """`check` sees every (node, event, effects) of every machine."""

    def __init__(
        self,
        spec: HouseSpec | None = None,
        seed: int = 0,
        check: Callable[[Node, Event, list[Effect]], None] | None = None,
    ) -> None:
        self.spec = spec or HouseSpec()
        self.world = World(seed)
        self.check = check
        self.hub = MemoryHub(self.world, self.world.rng, self._bus_delay)
        self.lines = MemoryLines(self.world)
        self._shape_lines()
        self.clients = Clients(self.world.now)
        self.processes: dict[str, Process] = {}
        self._lives: dict[str, int] = {}
        self.store: MemoryPrefixStore | None = None
        for role, name in self._names():
            self.boot(role, name)

    def _names(self) -> list[tuple[Role, str]]:
        spec = self.spec
        counts = ((Role.PREFILL, "p", spec.prefills), (Role.RELAY, "r", spec.relays), (Role.MAIN, "m", spec.mains))
        workers = [(role, f"{letter}{i}") for role, letter, count in counts for i in range(1, count + 1)]
        return [(Role.INDEX, "index"), (Role.ROUTER, "router"), *workers]

    @property
    def sites(self) -> list[str]:
        return sorted({self.spec.site_a, self.spec.site_b, *self.spec.sites.values()})

    def _shape_lines(self) -> None:
        for site in self.sites:
            self.lines.shape(site, site, self.spec.near_bytes_per_s, 0.0001)
        for site, other in combinations(self.sites, 2):
            self.lines.shape(site, other, self.spec.line_bytes_per_s, self.spec.line_rtt_s)

    def _bus_delay(self, sender: Peer, receiver: Peer) -> float:
        return self.spec.bus_delay_s if sender.site == receiver.site else self.spec.line_rtt_s / 2

    # -- processes ----------------------------------------------------------------------------------------------------

    def boot(self, role: Role, name: str) -> Process:
        """Start a process, or start it again under its name: a new incarnation."""
        life = self._lives[name] = self._lives.get(name, 0) + 1
        home = self.spec.site_b if role is Role.MAIN else self.spec.site_a
        me = Peer(self.spec.sites.get(name, home), role, name, life)
        make = {Role.ROUTER: self._router, Role.INDEX: self._index}.get(role, partial(self._worker, role=role))
        process = make(me)
        process.node.check = self.check
        self.processes[name] = process
        process.node.start()
        return process

    def kill(self, name: str) -> None:
        self.processes[name].kill()

    def _attach(self, node: Node, me: Peer, listen_to: tuple[type[Message], ...] = ()) -> Process:
        notes = MemoryNotes()
        bus = self.hub.bus(me, node.post, notes, listen_to=listen_to)
        node.ports = Ports(bus, notes)
        return Process(node, me, notes, close_bus=bus.close)

    def _router(self, me: Peer) -> Process:
        spec = self.spec
        machine = Router(
            me,
            FINGERPRINT,
            spec.timeouts,
            spec.routing,
            max_inflight=spec.max_inflight,
            policy=spec.policy,
            relay_bound=spec.relay_bound,
            singular=spec.singular,
        )
        process = self._attach(Node(self.world, machine), me, (Beat,))
        assert process.node.ports
        process.node.ports.text = self.clients
        return process

    def _index(self, me: Peer) -> Process:
        process = self._attach(Node(self.world, PrefixIndex(me, self.spec.timeouts)), me, (Beat, BlocksChanged))
        assert process.node.ports
        if self.store is None:
            self.store = MemoryPrefixStore(
                lambda event: self.processes["index"].node.post(event), process.notes, self.world
            )
        process.node.ports.store = self.store
        return process

    def _worker(self, me: Peer, role: Role) -> Process:
        spec = self.spec
        engine_spec = spec.engines.get(me.name) or spec.engines.get(role) or EngineSpec()
        address = f"{me.name}.{me.incarnation}:kv"
        card = WorkerCard(
            FINGERPRINT,
            context_limit(role, engine_spec.limits.context, spec.staging_bytes, spec.kv_shape.bytes_per_token),
            engine_spec.max_sequences,
            spec.kv_shape.bytes_per_token,
            address,
        )
        machine = WORKERS[role](me, card, spec.timeouts, b"secrets")
        process = self._attach(Node(self.world, machine), me)
        late_s = spec.answer_s if spec.answer_at in ("", me.name) else 0.0
        post = process.node.post
        process.engine = create_scripted(
            pages=engine_spec.pages,
            page_size=engine_spec.page_size,
            max_sequences=engine_spec.max_sequences,
            max_context=engine_spec.max_context,
            chunk_tokens=engine_spec.chunk_tokens,
            cost=engine_spec.cost,
            fingerprint=FINGERPRINT,
            kv_shape=spec.kv_shape,
            script=spec.script,
            sink=self._late(post, late_s),
            clock=self.world,
        )
        process.link = MemoryKvLink(
            me,
            self.lines,
            address=address,
            fingerprint=FINGERPRINT,
            source=process.engine,
            sink=self._late(post, late_s / 2),
            notes=process.notes,
            staging_bytes=spec.staging_bytes,
            chunk_tokens_max=spec.wire_chunk_tokens,
            owned=spec.leased,
        )
        assert process.node.ports
        process.node.ports.engine, process.node.ports.kv = process.engine, process.link
        return process

    def _late(self, post: Sink, seconds: float) -> Sink:
        """In order."""
        return (lambda event: self.world.call_later(seconds, partial(post, event))) if seconds else post

    # -- clients ------------------------------------------------------------------------------------------------------

    def submit(self, ids: tuple[int, ...], max_tokens: int, name: str = "", **more: Any) -> Client:
        """Ask the router, now."""
        request = RequestId(name or f"q{len(self.clients.all) + 1}")
        sampling = Sampling(max_tokens, stop_token_ids=(self.spec.script.end_token,))
        asked = RequestSubmitted(request, ids, more.pop("sampling", sampling), **more)
        client = self.clients.all[request] = Client(asked)
        self.processes["router"].node.post(asked)
        return client

    def leave(self, client: Client) -> None:
        client.gone = True
        self.processes["router"].node.post(RequestEnded(client.asked.request, "gone"))

    def baseline(self, client: Client) -> list[int]:
        """What one engine alone would have written."""
        asked = client.asked
        return reference(asked.ids, asked.sampling, len(asked.ids), self.spec.script)

    # -- time ---------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now() + seconds)

    def settle(self, seconds: float = 60.0) -> bool:
        """Until every client has ended and everything taken was given back; false if that takes longer."""
        until = self.world.now() + seconds
        return self.world.run(until, lambda: self.quiet)

    @property
    def quiet(self) -> bool:
        if not all(client.ended for client in self.clients.all.values()):
            return False
        return not self.leftovers()

    def leftovers(self) -> dict[str, str]:
        """What living processes still hold: requests, pages beyond the cache, staging memory."""
        found = {}
        for name, process in self.processes.items():
            if not process.node.alive:
                continue
            machine: Any = process.node.machine
            if not machine.idle:
                held: dict[RequestId, object] = getattr(machine, "held", {}) or getattr(machine, "courses", {})
                found[name] = f"holds {list(held)}"
            elif process.engine and process.engine.load().free_pages != process.engine.load().total_pages:
                found[name] = f"pages {process.engine.load()}"
            elif process.link and process.link.staging.used_bytes:
                found[name] = f"staging {process.link.staging.used_bytes}"
        return found

    def heard(self, name: str) -> list[Message]:
        """Messages that a process has taken so far."""
        return [event.message for _, event in self.processes[name].node.history if isinstance(event, Heard)]

    def with_engine(self, role: Role, **changes: Any) -> HouseSpec:
        """This spec with one role's engine changed, for a new house."""
        engine = replace(self.spec.engines.get(role, EngineSpec()), **changes)
        return replace(self.spec, engines=self.spec.engines | {role: engine})
