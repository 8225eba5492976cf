"""An engine without weights: deterministic tokens at a chip's cost, on any clock, so that whole fleets run on a laptop.

A token's KV is one 64-bit number that depends on all ids before it and on all KV before it, and the next token depends on all KV:
so a lost, doubled, swapped or damaged token shows in whatever is written later. KV leaves as canonical bytes of the configured
size, the number repeated over every layer and head; a copy that is not equal everywhere counts as damaged KV.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import log
from zlib import crc32

from ..core.batch import Batch, Limits
from ..core.cost import EngineCost
from ..core.errors import EngineError
from ..core.sampling import Sampling, TokenLogprobs
from ..core.steps import Sampled, Slice, StepPlan, StepResult
from ..ports import Clock, KvChunk, KvShape, Sink
from .engine_steps import SteppingEngine

WORD = 8  # bytes of a token's KV that are really kept
MASK = (1 << 64) - 1
SMALL_SHAPE = KvShape(layers=1, kv_heads=1, head_dim=2, dtype="float32")  # two words a token


def mix(value: int) -> int:
    """A bijection of 64 bits that leaves no pattern (the finalizer of SplitMix64)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def weigh(value: int, position: int) -> int:
    """What one KV adds to the total: another amount at another position."""
    return value * (2 * position + 1)


@dataclass(frozen=True, slots=True)
class Script:
    """The "weights". `end_token` is written about once in `mean_outputs` outputs (0: never by itself)."""

    seed: int = 0
    vocab: int = 32_000
    end_token: int = 2
    mean_outputs: int = 0

    def kv(self, total: int, token: int) -> int:
        """The KV of a token, where `total` is that of all KV before it."""
        return mix((total + mix(self.seed + (token + 1) * 0x9E3779B97F4A7C15)) & MASK)

    def token(self, total: int, sampling: Sampling, index: int) -> int:
        """Output `index`, where `total` is that of all KV before it. Before min_tokens none of the stop tokens."""
        barred = (*sampling.stop_token_ids, self.end_token) if index < sampling.min_tokens else ()
        drawn = mix(total ^ self.seed)
        while True:
            ends = self.mean_outputs and drawn % self.mean_outputs == 0
            token = self.end_token if ends else (drawn >> 20) % self.vocab
            # By chance it never ends: how long answers are is for `mean_outputs` to say.
            if token not in barred and (ends or token != self.end_token):
                return token
            drawn = mix(drawn + 1)


def reference(
    ids: Iterable[int], sampling: Sampling, prompt_len: int, script: Script, max_context: int | None = None
) -> list[int]:
    """The outputs that one engine alone writes after `ids`, until the sampling ends or KV would pass `max_context`."""
    known: list[int] = []
    total = 0

    def learn(token: int) -> None:
        nonlocal total
        total = (total + weigh(script.kv(total, token), len(known))) & MASK
        known.append(token)

    for token in ids:
        learn(token)
    start = len(known)
    while len(known) - prompt_len < sampling.max_tokens and (max_context is None or len(known) <= max_context):
        learn(script.token(total, sampling, len(known) - prompt_len))
        if known[-1] in sampling.stop_token_ids:
            break
    return known[start:]


class ScriptedRunner:
    """Memory is taken page by page as pages are first written: 8 bytes a token, whatever `kv_shape` says."""

    def __init__(self, script: Script, cost: EngineCost, clock: Clock, kv_shape: KvShape, page_size: int) -> None:
        if kv_shape.bytes_per_token // kv_shape.layers % WORD:
            raise EngineError(f"a layer of one token is not a multiple of {WORD} bytes: {kv_shape}")
        self.kv_shape = kv_shape
        self._script = script
        self._cost = cost
        self._clock = clock
        self._page_size = page_size
        self._pages: dict[int, array[int]] = {}
        self._totals: dict[int, tuple[int, int]] = {}  # page -> (its index in the sequence, total of its KV)

    @property
    def features(self) -> tuple[str, ...]:
        return ()

    def refuses(self, sampling: Sampling) -> str:
        return "no_grammar" if sampling.grammar else ""

    def run(self, plan: StepPlan, done: Callable[[StepResult], None]) -> None:
        sampled = tuple(one for one in map(self._compute, plan.slices) if one is not None)
        seconds = self._cost.seconds(plan)
        self._clock.call_later(seconds, lambda: done(StepResult(sampled, seconds)))

    def export(self, pages: list[int], page_size: int, start: int, stop: int) -> memoryview:
        repeated = self.kv_shape.bytes_per_token // self.kv_shape.layers // WORD
        return memoryview(_spread(self._read(pages, start, stop), repeated) * self.kv_shape.layers)

    def write(self, pages: list[int], page_size: int, chunks: list[KvChunk], done: Callable[[], None]) -> None:
        size = 0
        for chunk in chunks:
            if chunk.data.nbytes != (chunk.stop - chunk.start) * chunk.shape.bytes_per_token:
                raise EngineError(f"KV of tokens [{chunk.start}, {chunk.stop}) has {chunk.data.nbytes} bytes")
            if (chunk.shape.layers, chunk.shape.kv_heads) != (self.kv_shape.layers, self.kv_shape.kv_heads):
                raise EngineError(f"KV of another shape: {chunk.shape}, not {self.kv_shape}")
            size += chunk.data.nbytes
        for chunk in chunks:
            self._keep(pages, chunk.start, _gather(chunk))
        self._clock.call_later(size / self._cost.import_bytes_per_s, done)

    def _compute(self, piece: Slice) -> Sampled | None:
        sequence, script = piece.sequence, self._script
        total = self._total(sequence.pages, piece.start)
        fresh = array("Q")
        for position in range(piece.start, piece.stop):
            value = script.kv(total, sequence.ids[position])
            fresh.append(value)
            total = (total + weigh(value, position)) & MASK
        self._keep(sequence.pages, piece.start, fresh)
        if not piece.sample:
            return None
        token = script.token(total, sequence.sampling, piece.stop - sequence.prompt_len)
        return Sampled(token, self._logprobs(token, sequence.sampling.logprobs))

    def _logprobs(self, token: int, count: int) -> TokenLogprobs | None:
        """Made up: each next best has half the chance."""
        if count < 0:
            return None
        best = tuple(((token + i) % self._script.vocab, -(i + 1) * log(2)) for i in range(count))
        return TokenLogprobs(-log(2), best)

    def _total(self, pages: list[int], stop: int) -> int:
        """Of all KV before `stop`, read from pages in each step as attention does; whole pages are summed once."""
        whole = stop // self._page_size
        total = sum(self._page_total(page, index) for index, page in enumerate(pages[:whole]))
        start = whole * self._page_size
        return (total + _total(self._read(pages, start, stop), start)) & MASK

    def _page_total(self, page: int, index: int) -> int:
        known = self._totals.get(page)
        if known is None or known[0] != index:
            known = self._totals[page] = index, _total(self._pages[page], index * self._page_size)
        return known[1]

    def _read(self, pages: list[int], start: int, stop: int) -> "array[int]":
        size = self._page_size
        found = array("Q")
        for index in range(start // size, -(-stop // size)):
            at = index * size
            found += self._pages[pages[index]][max(start - at, 0) : min(stop - at, size)]
        return found

    def _keep(self, pages: list[int], start: int, values: "array[int]") -> None:
        size, taken = self._page_size, 0
        while taken < len(values):
            index, offset = divmod(start + taken, size)
            self._totals.pop(pages[index], None)
            page = self._pages.setdefault(pages[index], array("Q", bytes(size * WORD)))
            count = min(size - offset, len(values) - taken)
            page[offset : offset + count] = values[taken : taken + count]
            taken += count


def _total(values: "array[int]", start: int) -> int:
    return sum(weigh(value, position) for position, value in enumerate(values, start)) & MASK


def _spread(values: "array[int]", repeated: int) -> bytes:
    """One layer of canonical bytes: each value `repeated` times."""
    return b"".join(value.to_bytes(WORD, "little") * repeated for value in values)


def _gather(chunk: KvChunk) -> "array[int]":
    """The values that `_spread` laid out; a token whose copies differ gets another value, as damaged KV should."""
    layers, tokens = chunk.shape.layers, chunk.stop - chunk.start
    row = chunk.shape.bytes_per_token // layers
    data = bytes(chunk.data)
    values = array("Q", (int.from_bytes(data[at : at + WORD], "little") for at in range(0, tokens * row, row)))
    if data == _spread(values, row // WORD) * layers:
        return values
    for index, value in enumerate(values):
        copies = [data[(layer * tokens + index) * row :][:row] for layer in range(layers)]
        if any(copy != value.to_bytes(WORD, "little") * (row // WORD) for copy in copies):
            values[index] = mix(value ^ crc32(b"".join(copies)))
    return values


def create_scripted(
    *,
    pages: int,
    page_size: int,
    max_sequences: int,
    max_context: int,
    sink: Sink,
    clock: Clock,
    cost: EngineCost,
    chunk_tokens: int = 256,
    fingerprint: str = "scripted",
    kv_shape: KvShape = SMALL_SHAPE,
    script: Script | None = None,
) -> SteppingEngine:
    limits = Limits(pages, page_size, max_sequences, max_context, chunk_tokens)
    runner = ScriptedRunner(script or Script(), cost, clock, kv_shape, page_size)
    return SteppingEngine(Batch(limits, fingerprint), runner, sink, clock)
