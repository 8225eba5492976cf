"""Several decode steps as one event, where nobody could tell: the product's `Batch`, told of them together.

Only for steps of the same decodes in a row, between which nothing comes in and nothing ends.
"""

from ..core.batch import Batch
from ..core.cost import WEIGHT
from ..core.events import StepDone
from ..core.messages import Written
from ..core.steps import StepPlan


class StridingBatch(Batch):
    def reserve(self, steps: int) -> bool:
        """Pages for so many steps of the plan under way, from the cache's too, as the steps would. False, and nothing taken, where
        they would have to be taken from other sequences.
        """
        wanted = []
        for member in self._running:
            lease = member.lease
            assert lease is not None
            more = self.pool.pages_for(len(member.sequence.ids) + steps - 1) - len(lease.pages)
            if more > 0:
                wanted.append((lease, more))
        if sum(more for _, more in wanted) > self.pool.available:
            return False
        return all(self.pool.allocate(lease, more) for lease, more in wanted)

    def finish_stride(self, plan: StepPlan, tokens: list[tuple[int, ...]], seconds: float, now: float) -> StepDone:
        """`tokens`: what each of the plan's slices wrote, one a step; `seconds`: of all steps together."""
        computed, written = [], []
        for member, piece, ids in zip(self._running, plan.slices, tokens, strict=True):
            member.busy = False
            if member.closed:
                self._seating.drop(member)
                continue
            sequence = member.sequence
            start = sequence.outputs
            sequence.ids.extend(ids)
            stop = piece.stop + len(ids) - 1
            self._computed(member, stop)
            member.announced = stop
            finish = member.ending(ids[-1])
            member.ended = finish is not None
            computed.append((sequence.key, stop))
            written.append(Written(sequence.key.request, sequence.key.epoch, start, ids, (), finish))
        steps = len(tokens[0])
        self._under_way, self._running = None, ()
        mean, known = seconds / steps, self._pace.step_s
        self._pace.step_s = mean + (known - mean) * (1 - WEIGHT) ** steps if known else mean
        return self._report(now - seconds, tuple(computed), tuple(written))
