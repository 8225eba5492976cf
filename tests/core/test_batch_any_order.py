"""The batch under any order of calls: pages hold what their sequences think, nothing is written twice, nothing waits for ever."""

from dataclasses import dataclass, field

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from pdd.core.batch import Batch, Limits
from pdd.core.effects import AppendIds, OpenSequence, Speak
from pdd.core.events import SequenceOpened, StepDone
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.member import Import
from pdd.core.sampling import Sampling
from pdd.core.steps import Sampled, StepPlan, StepResult

PAGE = 4
LIMITS = Limits(pages=12, page_size=PAGE, max_sequences=6, max_context=1000, chunk_tokens=8)


def next_token(ids: list[int]) -> int:
    return hash(tuple(ids)) % 3


@dataclass(eq=False)
class Client:
    """What the test knows of one sequence."""

    key: Key
    ids: list[int]
    prompt_len: int
    compute_last: bool
    have: int
    importing: bool = False
    ended: bool = False
    told: int = field(default=0)


class AnyOrder(RuleBasedStateMachine):
    clients: Bundle[Client] = Bundle("clients")

    @initialize()
    def build(self) -> None:
        self.batch = Batch(LIMITS, "weights")
        self.memory: dict[tuple[int, int], int] = {}  # (page, offset) -> what KV is there
        self.open: dict[Key, Client] = {}
        self.work: StepPlan | Import | None = None
        self.names = 0
        self.now = 0.0

    # -- calls --------------------------------------------------------------------------------------------------------

    @rule(
        target=clients,
        pages=st.lists(st.integers(0, 1), max_size=4),
        tail=st.integers(1, PAGE),
        outputs=st.integers(0, 3),
        max_tokens=st.integers(1, 20),
        compute_last=st.booleans(),
    )
    def open_sequence(self, pages: list[int], tail: int, outputs: int, max_tokens: int, compute_last: bool) -> Client:
        ids = [letter for letter in pages for _ in range(PAGE)] + [7] * tail
        key = Key(RequestId(str(self.names)), Epoch(1))
        self.names += 1
        prompt_len = max(1, len(ids) - outputs)
        answer = self.batch.open(OpenSequence(key, tuple(ids), prompt_len, Sampling(max_tokens), "", compute_last))
        assert isinstance(answer, SequenceOpened) is (len(self.open) < LIMITS.max_sequences)
        client = Client(key, ids, prompt_len, compute_last, answer.have if isinstance(answer, SequenceOpened) else 0)
        if isinstance(answer, SequenceOpened):
            self.open[key] = client
            self.holds(client, answer.have)
        return client

    @rule(client=clients, stop=st.none() | st.integers(0, 12))
    def speak(self, client: Client, stop: int | None) -> None:
        self.batch.speak(Speak(client.key, stop))

    @rule(client=clients)
    def hush(self, client: Client) -> None:
        self.batch.hush(client.key)

    @rule(client=clients, ids=st.lists(st.integers(0, 2), max_size=6), back=st.integers(0, 3))
    def append(self, client: Client, ids: list[int], back: int) -> None:
        assume(client.key in self.open and not client.ended)
        known = self.batch.sequence(client.key).outputs
        start = max(0, known - back)
        self.batch.append_ids(AppendIds(client.key, start, tuple(ids)))
        client.ids += ids[known - start :][
            : self.batch.sequence(client.key).outputs - known
        ]  # who has ended learns nothing

    @rule(client=clients)
    def import_kv(self, client: Client) -> None:
        if client.key in self.open and not client.importing:
            client.importing = self.stage(client)

    def stage(self, client: Client) -> bool:
        base = self.batch._members[client.key].base
        if client.compute_last or client.have == base:
            return False
        return isinstance(self.batch.begin_import(client.key, client.have, base), Import)

    @rule(client=consumes(clients))
    def close(self, client: Client) -> None:
        self.batch.close(client.key)
        self.open.pop(client.key, None)

    # -- work ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.work is None)
    @rule()
    def begin(self) -> None:
        self.work = self.batch.next_work()
        if isinstance(self.work, StepPlan):
            assert self.work.slices
            for piece in self.work.slices:
                self.holds(self.open[piece.sequence.key], piece.start)
                self.put(piece.sequence.key, piece.sequence.ids, piece.start, piece.stop)
        elif self.work is not None and not self.work.failure:
            sequence = self.work.member.sequence
            self.put(sequence.key, sequence.ids, self.work.start, self.work.stop)

    @precondition(lambda self: self.work is not None)
    @rule()
    def finish(self) -> None:
        work, self.work = self.work, None
        self.now += 1.0
        if isinstance(work, StepPlan):
            asked = [piece for piece in work.slices if piece.sample]
            tokens = tuple(Sampled(next_token(piece.sequence.ids[: piece.stop])) for piece in asked)
            self.hear(self.batch.finish_step(work, StepResult(tokens, 0.5), self.now))
        else:
            assert isinstance(work, Import)
            kept = self.batch.finish_import(work, written=not work.failure)
            client = self.open.get(work.member.sequence.key)
            assert kept is (client is not None and not work.failure)
            if client is not None and work.failure:
                self.close(client)

    def hear(self, step: StepDone) -> None:
        for key, upto in step.computed:
            client = self.open[key]
            assert upto > client.told
            client.told = upto
            self.holds(client, upto)
        for part in step.written:
            client = self.open[Key(part.request, part.epoch)]
            assert not client.ended
            assert part.start == len(client.ids) - client.prompt_len
            for token in part.ids:
                assert token == next_token(client.ids)
                client.ids.append(token)
            client.ended = part.finish is not None

    # -- memory -------------------------------------------------------------------------------------------------------

    def holds(self, client: Client, upto: int) -> None:
        """Every token before `upto` has the KV of exactly the ids before it."""
        pages = self.batch.sequence(client.key).pages
        for position in range(upto):
            at = pages[position // PAGE], position % PAGE
            assert self.memory[at] == hash(tuple(client.ids[: position + 1]))

    def put(self, key: Key, ids: list[int], start: int, stop: int) -> None:
        """KV is written into pages of this sequence alone, which are not in the cache."""
        member = self.batch._members[key]
        assert member.lease is not None
        own = member.lease.pages[member.lease.node.depth :]
        for position in range(start, stop):
            page = member.sequence.pages[position // PAGE]
            assert page in own
            self.memory[page, position % PAGE] = hash(tuple(ids[: position + 1]))

    @invariant()
    def every_page_is_free_or_cached_or_of_one_sequence(self) -> None:
        members = {*self.batch._members.values(), *self.batch._running}
        if isinstance(self.work, Import):
            members.add(self.work.member)
        own = [page for one in members if one.lease for page in one.lease.pages[one.lease.node.depth :]]
        assert len(own) == len(set(own))
        assert self.batch.pool.free + self.batch.pool.cached + len(own) == LIMITS.pages

    @invariant()
    def a_bounded_speaker_never_passes_its_bound(self) -> None:
        for member in self.batch._members.values():
            assert member.sequence.computed <= len(member.sequence.pages) * PAGE

    def teardown(self) -> None:
        """Let everybody speak to the end: nobody waits for ever, and everything taken is given back."""
        for client in self.open.values():
            self.batch.speak(Speak(client.key))
            if not client.importing:
                client.importing = self.stage(client)
        if self.work is not None:
            self.finish()
        for _ in range(2000):
            if not self.open:
                break
            self.begin()
            if self.work is not None:
                self.finish()
                continue
            flushed = self.batch.flush(self.now)
            if flushed:
                self.hear(flushed)
            ended = [client for client in self.open.values() if client.ended or len(client.ids) > LIMITS.pages * PAGE]
            assert ended, "a deadlock"
            for client in ended:
                self.close(client)
        assert not self.open
        assert self.batch.pool.free + self.batch.pool.cached == LIMITS.pages == self.batch.pool.available


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestAnyOrder = pytest.mark.timeout(400)(AnyOrder.TestCase)  # to shrink a failure takes minutes
