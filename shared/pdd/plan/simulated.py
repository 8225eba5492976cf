"""A fleet in virtual time, as large as a deployment: the product's machines over ports that only count. Same seed, same result.

`House` shows what happens to each byte of a few workers; this shows what clients of hundreds see.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..core import effects as fx
from ..core.events import RequestSubmitted
from ..core.ids import Peer, Role
from ..core.messages import Beat, BlocksChanged, WorkerCard
from ..core.roles.main_decode import MainDecode
from ..core.roles.prefill import Prefill
from ..core.roles.prefix_index import PrefixIndex
from ..core.roles.relay_decode import RelayDecode
from ..core.roles.worker import Worker
from ..ports import Machine
from ..sim.clients import SimClients
from ..sim.engine import Lengths, SimEngine
from ..sim.kv import SimKv
from ..sim.line import SimLine
from ..sim.node import Handlers, SimNode
from ..sim.report import Run
from ..sim.store import SimStore
from ..sim.striding import StridingBatch
from ..sim.tally import Tally
from ..sim.wires import Wires
from ..sim.workload import Load, Session
from ..sim.world import World
from .fleet_parts import FleetPlan

SITE_A, SITE_B = "a", "b"
FINGERPRINT = "simulated"
BUS_S = 0.0003
STARTING_S = 1.2  # the first beats
MACHINES: dict[Role, type[Worker[Any]]] = {
    Role.PREFILL: Prefill,
    Role.RELAY: RelayDecode,
    Role.MAIN: MainDecode,
}
LETTERS = {Role.PREFILL: "p", Role.RELAY: "r", Role.MAIN: "m"}


@dataclass(eq=False)
class SimWorker:
    """One life of one worker."""

    me: Peer
    node: SimNode
    engine: SimEngine
    kv: SimKv


@dataclass(eq=False)
class SimFleet:
    plan: FleetPlan
    load: Load
    title: str = "simulated"
    seed: int = 7
    world: World = field(init=False)
    workers: dict[str, SimWorker] = field(default_factory=dict, init=False)
    tally: Tally = field(default_factory=Tally, init=False)
    starts: Callable[[], Iterator[tuple[float, Session]]] | None = field(
        default=None, init=False
    )  # instead of the load's own times

    def __post_init__(self) -> None:
        plan = self.plan
        # Small ids are objects that stay in the processor's cache: comparing prompts is most of what a long one costs here.
        self.load = msgspec.structs.replace(self.load, lowest_id=8, highest_id=256)
        self.world = World(self.seed)
        self.run_record = Run(self.title, warmup_s=self.load.warmup_s)
        self.lengths = Lengths()
        self.wires = Wires(self.world, BUS_S, BUS_S if plan.same_site else BUS_S + plan.line.rtt_s / 2)
        line = plan.line
        self.line = SimLine(
            self.world,
            line.bytes_per_s,
            line.rtt_s,
            flow_bytes_per_s=line.flow_bytes_per_s,
            order=line.order,
            flows_max=line.flows,
        )
        self._near: dict[str, SimLine] = {}
        self._kvs: dict[str, SimKv] = {}
        self._lives: dict[str, int] = {}
        self._index()
        self._router()
        for role, workers in plan.workers.items():
            for number in range(1, workers.count + 1):
                self.boot(role, f"{LETTERS[role]}{number}")

    # -- processes ----------------------------------------------------------------------------------------------------

    def boot(self, role: Role, name: str) -> SimWorker:
        """Start a worker, or start it again under its name."""
        life = self._lives[name] = self._lives.get(name, 0) + 1
        site = SITE_B if role is Role.MAIN and not self.plan.same_site else SITE_A
        worker = self._worker(Peer(site, role, name, life))
        self.workers[name] = worker
        worker.node.start()
        if whole := self.load.preload(self.seed):
            worker.engine.preload(whole)
        return worker

    def kill(self, name: str) -> None:
        worker = self.workers[name]
        worker.node.alive = worker.engine.alive = False
        self.wires.detach(name)
        worker.kv.die()

    def revive(self, name: str) -> None:
        self.boot(self.workers[name].me.role, name)

    def _worker(self, me: Peer) -> SimWorker:
        plan, workers = self.plan, self.plan.workers[me.role]
        limits = workers.limits
        address = f"{me.name}.{me.incarnation}"
        card = WorkerCard(FINGERPRINT, limits.max_context, limits.max_sequences, int(plan.sizes.token_bytes), address)
        machine = MACHINES[me.role](me, card, plan.timeouts, b"secrets")
        handlers: dict[type[fx.Effect], Callable[..., None]] = {}
        node = SimNode(self.world, machine, handlers)
        engine = SimEngine(
            StridingBatch(limits, FINGERPRINT),
            workers.cost,
            self.world,
            node.post,
            self.lengths,
            plan.kv_bytes,
            plan.stride if me.role is Role.MAIN else 1,
            plan.grain,
        )
        kv = SimKv(me, self.world, node.post, plan.sizes, lambda to: self._way(me, to), self._kvs, plan.staging_bytes)
        handlers |= self._common(me) | _engine_handlers(engine, kv)
        self.wires.attach(me, node.post)
        return SimWorker(me, node, engine, kv)

    def _common(self, me: Peer) -> dict[type[fx.Effect], Callable[..., None]]:
        tally = self.tally
        return {
            fx.Send: lambda effect: self.wires.send(me, effect),
            fx.Broadcast: lambda effect: self.wires.broadcast(me, effect),
            fx.Count: tally.count,
            fx.Gauge: tally.drop,
            fx.Observe: tally.drop,
            fx.Span: tally.drop,
        }

    def _way(self, me: Peer, to: Peer) -> SimLine:
        """Between sites all share one line; within one each sender has its own card."""
        if to.site != me.site:
            return self.line
        near = self._near.get(me.name)
        if near is None:
            line = self.plan.line
            near = self._near[me.name] = SimLine(self.world, line.near_bytes_per_s, line.near_rtt_s, order="fair")
        return near

    def _service(self, me: Peer, machine: Machine, more: Handlers, listens: tuple[type, ...]) -> SimNode:
        node = SimNode(self.world, machine, {**self._common(me), **more})
        self.wires.attach(me, node.post, listens)
        return node

    def _index(self) -> None:
        me = Peer(SITE_A, Role.INDEX, "index", 1)
        store = SimStore(lambda event: self.index.post(event), self.world)
        handlers: Handlers = {
            fx.StoreBlocks: store.store,
            fx.ReplaceBlocks: store.replace,
            fx.KeepHolder: store.keep,
            fx.FindPrefix: store.find,
        }
        self.index = self._service(me, PrefixIndex(me, self.plan.timeouts), handlers, (Beat, BlocksChanged))
        self.index.start()

    def _router(self) -> None:
        me, plan = Peer(SITE_A, Role.ROUTER, "router", 1), self.plan
        machine = plan.router(
            me,
            FINGERPRINT,
            plan.timeouts,
            plan.routing,
            max_inflight=plan.max_inflight,
            policy=plan.policy,
            relay_bound=plan.relay_bound,
            singular=plan.singular,
        )
        self.clients = SimClients(
            self.world, self.load, self.run_record, self.lengths, self._submit, even=plan.stride > 1, grain=plan.grain
        )
        handlers: Handlers = {
            fx.Deliver: self.clients.deliver,
            fx.Complete: self.clients.complete,
            fx.Reject: self.clients.reject,
        }
        self.router_machine = machine
        self.router = self._service(me, machine, handlers, (Beat,))
        self.router.start()

    def _submit(self, asked: RequestSubmitted) -> None:
        self.router.post(asked)

    # -- a run --------------------------------------------------------------------------------------------------------

    def run(
        self, base: Path, told: Callable[[float, int], None] = lambda now, under_way: None, drain_s: float | None = None
    ) -> Run:
        """Play the whole load. `told` is called each simulated second. With `drain_s` the run ends so long after `duration_s`."""
        until = float("inf") if drain_s is None else self.load.duration_s + drain_s
        self.world.run(STARTING_S)
        self.clients.play(self.starts() if self.starts else self.load.timed(self.seed, base))
        while not self.clients.done and self.clients.now < until:
            self.world.run(self.world.now() + 1.0)
            told(self.clients.now, self.clients.under_way)
        courses = self.router_machine.courses
        self.clients.stop(lambda request: courses[request].report if request in courses else None)
        run = self.run_record
        run.seconds = self.clients.now
        run.facts |= self._facts()
        return run

    def _facts(self) -> dict[str, str | int | float]:
        counts = {role.value: workers.count for role, workers in self.plan.workers.items()}
        seconds = max(1e-9, self.clients.now)
        busy = {
            role: sum(w.engine.busy_s for w in self.workers.values() if w.me.role == role) / seconds / max(1, count)
            for role, count in counts.items()
        }
        return {
            "seed": self.seed,
            **counts,
            "events": self.events,
            "line_use": round(self.line.carried / seconds / max(1.0, self.line.bytes_per_s), 4),
            **{f"{role}_busy": round(share, 4) for role, share in busy.items()},
        }

    @property
    def events(self) -> int:
        """Handled by machines so far."""
        nodes = [self.router, self.index, *(worker.node for worker in self.workers.values())]
        return sum(node.events for node in nodes)


def _engine_handlers(engine: SimEngine, kv: SimKv) -> dict[type[fx.Effect], Callable[..., None]]:
    def import_kv(effect: fx.ImportKv) -> None:
        expected = kv.expected(effect.transfer)
        engine.import_kv(effect.key, expected.start, expected.stop, lambda: kv.drop(fx.DropKv(effect.transfer)))

    return {
        fx.OpenSequence: engine.open,
        fx.AppendIds: engine.append_ids,
        fx.Speak: engine.speak,
        fx.Hush: engine.hush,
        fx.CloseSequence: engine.close,
        fx.ImportKv: import_kv,
        fx.ExpectKv: kv.expect,
        fx.DropKv: kv.drop,
        fx.OpenTransfer: kv.open_transfer,
        fx.OfferKv: kv.offer,
        fx.CloseTransfer: kv.close_transfer,
        fx.CancelTransfer: kv.cancel,
    }
