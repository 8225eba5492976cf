"""Engines under contract, and a desk from which a test drives one. A new adapter is one row of ENGINES."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from queue import SimpleQueue

from pdd.adapters.engine_scripted import create_scripted
from pdd.adapters.engine_steps import SteppingEngine
from pdd.core.batch import Limits
from pdd.core.cost import EngineCost
from pdd.core.effects import AppendIds, OpenSequence, Speak
from pdd.core.events import Event, StepDone
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.messages import Written
from pdd.core.sampling import Sampling
from pdd.ports import Clock, KvChunk, KvShape, Sink
from pdd.sim.world import World

Post = Callable[[Callable[[], None]], None]
WAIT_S = 60  # for one piece of work of a runner with threads
LIMITS = Limits(pages=128, page_size=16, max_sequences=24, max_context=1024, chunk_tokens=64)
GREEDY = Sampling(max_tokens=24)
SEEDED = Sampling(max_tokens=24, temperature=0.8, seed=7)
COST = EngineCost(step_s=0.01, prefill_tokens_per_s=5_000.0, decode_s=0.001, import_bytes_per_s=1e6)


@dataclass(frozen=True)
class EngineKind:
    """`post` is for runners with a thread of their own: it brings a call to the test's thread. Same weights each time."""

    create: Callable[[Limits, Sink, Clock, Post], SteppingEngine]
    threaded: bool
    vocab: int


def scripted(limits: Limits, sink: Sink, clock: Clock, post: Post) -> SteppingEngine:
    return create_scripted(
        pages=limits.pages,
        page_size=limits.page_size,
        max_sequences=limits.max_sequences,
        max_context=limits.max_context,
        chunk_tokens=limits.chunk_tokens,
        sink=sink,
        clock=clock,
        cost=COST,
        kv_shape=KvShape(layers=3, kv_heads=2, head_dim=4, dtype="float32"),
    )


def torch(limits: Limits, sink: Sink, clock: Clock, post: Post) -> SteppingEngine:
    from tests.contract.engine_torch_kind import create_tiny_torch

    return create_tiny_torch(limits, sink, clock, post)


ENGINES: dict[str, EngineKind] = {
    "scripted": EngineKind(scripted, threaded=False, vocab=32_000),
    "torch": EngineKind(torch, threaded=True, vocab=400),
}


def key(name: str, epoch: int = 1) -> Key:
    return Key(RequestId(name), Epoch(epoch))


class Rig:
    """One loop for all engines of a test, in virtual time."""

    def __init__(self, kind: EngineKind) -> None:
        self.kind = kind
        self.world = World()
        self.desks: list[Desk] = []
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def desk(self, **limits: int) -> "Desk":
        desk = Desk(self, replace(LIMITS, **limits))
        self.desks.append(desk)
        return desk

    def create(self, limits: Limits, sink: Sink) -> SteppingEngine:
        return self.kind.create(limits, sink, self.world, self._posted.put)

    def prompt(self, tokens: int, seed: int = 0) -> list[int]:
        return [(i * i * 7919 + i * 31 + seed * 104_729 + 3) % self.kind.vocab for i in range(tokens)]

    def run_until(self, done: Callable[[], bool]) -> None:
        """Fails if all engines come to rest before."""
        while not done():
            self.world.run(self.world.now() + 0.001, done)
            if done():
                return
            assert not self.resting(), "nothing more will happen"
            if self.kind.threaded:
                self._posted.get(timeout=WAIT_S)()

    def resting(self) -> bool:
        return all(desk.engine.idle for desk in self.desks)

    def settle(self) -> None:
        self.run_until(self.resting)

    def alone(self, ids: list[int], sampling: Sampling) -> list[int]:
        """What one engine writes that has nothing else to do."""
        return list(_alone(self.kind, tuple(ids), sampling.max_tokens, sampling.temperature, sampling.seed))


@cache
def _alone(kind: EngineKind, ids: tuple[int, ...], max_tokens: int, temperature: float, seed: int) -> tuple[int, ...]:
    rig = Rig(kind)
    desk = rig.desk(pages=256, max_context=2048, chunk_tokens=4096)
    desk.open("alone", list(ids), Sampling(max_tokens, seed=seed, temperature=temperature))
    desk.speak("alone")
    rig.settle()
    return tuple(desk.outputs("alone"))


class Desk:
    """One engine, by short names, with all its events."""

    def __init__(self, rig: Rig, limits: Limits) -> None:
        self.events: list[Event] = []
        self.limits = limits
        self.engine = rig.create(limits, self.events.append)

    def open(
        self,
        name: str,
        ids: list[int],
        sampling: Sampling = GREEDY,
        *,
        prompt_len: int | None = None,
        compute_last: bool = True,
        salt: str = "",
    ) -> Event:
        length = len(ids) if prompt_len is None else prompt_len
        self.engine.open(OpenSequence(key(name), tuple(ids), length, sampling, salt, compute_last))
        return self.events[-1]

    def speak(self, name: str, stop: int | None = None) -> None:
        self.engine.speak(Speak(key(name), stop))

    def hush(self, name: str) -> None:
        self.engine.hush(key(name))

    def close(self, name: str) -> None:
        self.engine.close(key(name))

    def append(self, name: str, start: int, ids: list[int]) -> None:
        self.engine.append_ids(AppendIds(key(name), start, tuple(ids)))

    def export(self, name: str, start: int, stop: int, piece: int = 50) -> list[KvChunk]:
        ranges = ((at, min(at + piece, stop)) for at in range(start, stop, piece))
        return [self.engine.export_kv(key(name), at, end) for at, end in ranges]

    def take(self, name: str, chunks: list[KvChunk]) -> list[str]:
        """Import; returns a list that gets one entry when the chunks' memory is free again."""
        released: list[str] = []
        self.engine.import_kv(key(name), chunks, lambda: released.append(name))
        return released

    # -- what came of it ----------------------------------------------------------------------------------------------

    def saw(self, event: Event) -> bool:
        return event in self.events

    @property
    def steps(self) -> list[StepDone]:
        return [event for event in self.events if isinstance(event, StepDone)]

    def written(self, name: str) -> list[Written]:
        return [part for step in self.steps for part in step.written if part.request == name]

    def outputs(self, name: str) -> list[int]:
        """All ids written here; fails unless each continues the one before."""
        parts = self.written(name)
        for before, after in pairwise(parts):
            assert after.start == before.stop, f"outputs {before.stop} and {after.start} of {name} do not join"
        return [token for part in parts for token in part.ids]

    def computed(self, name: str) -> list[int]:
        return [upto for step in self.steps for of, upto in step.computed if of.request == name]
