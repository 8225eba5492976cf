"""A whole deployment in virtual time: the five machines over memory adapters and scripted engines, in one process.

The same machines as live, with the world replaced. Workers can be killed, restarted and paused; bus and lines can be made bad.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

from ..adapters.bus_memory import MemoryHub
from ..adapters.engine_scripted import create_scripted, reference
from ..adapters.engine_steps import SteppingEngine
from ..adapters.kv_memory import MemoryKvLink
from ..adapters.kv_memory_lines import MemoryLines
from ..adapters.notes_memory import MemoryNotes
from ..adapters.prefix_memory import MemoryPrefixStore
from ..core.effects import Effect
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
from ..core.sampling import Sampling
from ..ports import Ports, Sink
from ..sim.world import Node, World
from .house_parts import Client, Clients, EngineSpec, HouseSpec

WORKERS: dict[Role, type[Worker[Any]]] = {
    Role.PREFILL: Prefill,
    Role.RELAY: RelayDecode,
    Role.MAIN: MainDecode,
}
FINGERPRINT = "scripted"


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
