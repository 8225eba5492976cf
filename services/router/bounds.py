"""Grammars at the front door: what cannot be compiled, or not cheaply, is refused at once; what was written is checked at the end.

A verdict is kept, so that an agent's tools are looked at once.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from pdd.adapters.grammar import Constraint, GrammarError, Grammars
from pdd.adapters.grammar_probe import MOST_CPU_S, TOO_LARGE, first_line, probe
from pdd.core.features import GRAMMAR

from .errors import ApiError, invalid

MAX_GRAMMAR_BYTES = 128 << 10
MOST_VERDICTS = 512
PATIENCE_S = 10.0  # for those that came before: one is looked at at a time, and so workers compile no faster either


class Bounds:
    """`fleet_can`: whether a worker here has the feature now; true where nobody is known, for then the machine has its own answer."""

    def __init__(self, grammars: Grammars | None, fleet_can: Callable[[str], bool]) -> None:
        self._grammars = grammars
        self._fleet_can = fleet_can
        self._verdicts: OrderedDict[str, str] = OrderedDict()
        self._probing = asyncio.Lock()

    async def admit(self, text: str, param: str) -> None:
        """Raises ApiError (400) naming `param`, or (429) where too many others wait."""
        if self._grammars is None or not self._fleet_can(GRAMMAR):
            raise ApiError(f"{param}: no worker here can bind an answer", param=param, code="unsupported_feature")
        size = len(text.encode())
        if size > MAX_GRAMMAR_BYTES:
            raise invalid(param, f"may have at most {MAX_GRAMMAR_BYTES} bytes, got {size}")
        verdict = self._verdicts.get(text)
        if verdict is None:
            verdict = await self._judge(text, self._grammars)
        if verdict:
            raise invalid(param, verdict)

    def constraint(self, text: str) -> Constraint | None:
        """Of an admitted text; None for none."""
        return self._grammars.constraint(text) if text and self._grammars else None

    async def _judge(self, text: str, grammars: Grammars) -> str:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._probing.acquire()
        except TimeoutError:
            said = "Too many new grammars at once; try again later."
            raise ApiError(said, status=429, code="overloaded", retry_after_s=PATIENCE_S) from None
        try:
            if text not in self._verdicts:  # another may have asked the same meanwhile
                verdict = await asyncio.to_thread(probe, text) or await asyncio.to_thread(_compile, grammars, text)
                self._verdicts[text] = verdict
                if len(self._verdicts) > MOST_VERDICTS:
                    self._verdicts.popitem(last=False)
            return self._verdicts[text]
        finally:
            self._probing.release()


def _compile(grammars: Grammars, text: str) -> str:
    """With the tokenizer that speakers have; the probe has seen that it ends."""
    began = time.thread_time()
    try:
        grammars.constraint(text).allowed()
    except GrammarError as error:
        return first_line(str(error))
    return TOO_LARGE if time.thread_time() - began > MOST_CPU_S else ""
