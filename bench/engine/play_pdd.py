"""The contender of this house: the torch engine behind its port, as a worker runs it, with a loop that only takes what comes."""

import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from pdd.adapters.engine_torch import create_torch
from pdd.core.effects import OpenSequence, Speak
from pdd.core.events import Event, StepDone
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.sampling import Sampling

from .asked import Asked, Took, Watch, answer_all, claim_stdout

WAIT_S = 600


class Loop:
    """Clock, post and sink of one engine."""

    def __init__(self) -> None:
        self._actions: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.post = self._actions.put
        self.written: dict[str, list[int]] = {}

    def now(self) -> float:
        return 0.0

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.post(action)

    def sink(self, event: Event) -> None:
        if isinstance(event, StepDone):
            for part in event.written:
                self.written[part.request] += part.ids

    def run_until_each_has(self, outputs: int) -> None:
        while min(map(len, self.written.values())) < outputs:
            self._actions.get(timeout=WAIT_S)()


def main(model_dir: Path, dtype: str, longest: int, batch: int) -> None:
    pipe = claim_stdout()
    loop = Loop()
    engine = create_torch(
        model_dir, fingerprint="", sink=loop.sink, clock=loop, post=loop.post,
        dtype=dtype, pages=max(2 * longest // 16, 64) * batch, max_sequences=batch, max_context=longest,
    )  # fmt: skip
    turn = 0

    def perform(asked: Asked) -> Took:
        nonlocal turn
        turn += 1
        keys = [Key(RequestId(str(number)), Epoch(turn)) for number in range(len(asked.prompts))]
        loop.written = {key.request: [] for key in keys}
        watch = Watch()
        watch.start()
        for key, ids in zip(keys, asked.prompts, strict=True):
            engine.open(OpenSequence(key, tuple(ids), len(ids), Sampling(asked.outputs), str(turn), True))
            engine.speak(Speak(key, 1))
        loop.run_until_each_has(1)
        if asked.outputs > 1:
            watch.start()
            for key in keys:
                engine.speak(Speak(key, None))
            loop.run_until_each_has(asked.outputs)
        watch.stop()
        for key in keys:
            engine.close(key)
        prompt_tokens, outputs = sum(map(len, asked.prompts)), len(keys) * (asked.outputs - 1)
        return watch.took(outputs or prompt_tokens, list(loop.written.values()))

    answer_all(pipe, perform)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
