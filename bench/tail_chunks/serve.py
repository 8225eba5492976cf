"""P in virtual time: the core's own batch, fed with prompts of which a given share is cached, each step costing what the model says."""

from dataclasses import dataclass

from pdd.core.batch import Batch, Composer, Limits
from pdd.core.cost import EngineCost
from pdd.core.effects import OpenSequence, Speak
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.sampling import Sampling
from pdd.core.steps import Sampled, StepPlan, StepResult

PAGE = 16


@dataclass(frozen=True)
class Load:
    prompt: int  # tokens of each
    at_once: int  # requests that P holds at any time
    count: int


@dataclass(frozen=True)
class Served:
    seconds: float
    missed: int  # tokens computed in all
    steps: int

    @property
    def tokens_per_s(self) -> float:
        return self.missed / self.seconds


def serve(cost: EngineCost, chunk_tokens: int, composer: Composer, load: Load, hit: float) -> Served:
    """All requests share the first `hit` of their prompt, in whole pages, and nothing else."""
    pages = (load.at_once + 1) * (load.prompt // PAGE + 2)
    batch = Batch(Limits(pages, PAGE, load.at_once, load.prompt + 1, chunk_tokens), "", composer)
    shared = min(int(load.prompt * hit), load.prompt - 1) // PAGE * PAGE
    _run(batch, cost, [_ids(0, 0, shared)] if shared else [])
    return _run(batch, cost, [_ids(n + 1, shared, load.prompt) for n in range(load.count)])


def _ids(number: int, shared: int, prompt: int) -> tuple[int, ...]:
    return (*[1] * shared, 2 + number, *[1] * (prompt - shared - 1)) if number else (1,) * prompt


def _run(batch: Batch, cost: EngineCost, prompts: list[tuple[int, ...]]) -> Served:
    """Each is opened when there is room, writes its one token and closes."""
    seconds, missed, steps, opened, running = 0.0, 0, 0, 0, 0
    while opened < len(prompts) or running:
        while opened < len(prompts) and running < batch.limits.max_sequences:
            key = Key(RequestId(f"{len(prompts)}.{opened}"), Epoch(1))
            batch.open(OpenSequence(key, prompts[opened], len(prompts[opened]), Sampling(1), "", True))
            batch.speak(Speak(key, None))
            opened, running = opened + 1, running + 1
        plan = batch.next_work()
        assert isinstance(plan, StepPlan)
        took = cost.seconds(plan)
        seconds, steps = seconds + took, steps + 1
        missed += sum(part.stop - part.start for part in plan.slices)
        done = batch.finish_step(plan, StepResult(tuple(Sampled(0) for part in plan.slices if part.sample), took), 0.0)
        for part in done.written:
            batch.close(Key(part.request, part.epoch))
            running -= 1
    return Served(seconds, missed, steps)
