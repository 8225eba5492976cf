"""One choice of an answer: ids in, what the client may see out, and how it ended.

The token that ends it (an end token, a stop id) is counted and shows no text; tokens behind a stop string are not counted.
Text of the first `min_tokens` tokens is never cut: a stop string counts only where it begins after them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pdd.adapters.grammar import Constraint
from pdd.core.effects import RequestReport
from pdd.core.ids import RequestId
from pdd.core.messages import Written
from pdd.core.sampling import Finish, TokenLogprobs

from .detokenize import Detokenizer, StopCut
from .tool_calls import CallPart, ToolCalls

ENDED = ("stop", "tool_calls")


class TokenEntry(NamedTuple):
    """One token's log probabilities; `offset`: where its text begins in the choice's, in characters."""

    token: int
    logprobs: TokenLogprobs
    offset: int


@dataclass(slots=True)
class Piece:
    """What a client may see of a choice."""

    text: str = ""
    entries: list[TokenEntry] = field(default_factory=list)
    calls: list[CallPart] = field(default_factory=list)

    def add(self, more: "Piece") -> None:
        self.text += more.text
        self.entries += more.entries
        self.calls += more.calls

    @property
    def empty(self) -> bool:
        return not (self.text or self.entries or self.calls)


class Choice:
    """`stopped`: a stop string was found, or the one call that was allowed is whole; the machine has to be told.

    `finish` is set once it has ended for good. `constraint`: what the whole answer must fit. `calls`: where the text may hold tool
    calls; `one_call` ends it with the first.
    """

    def __init__(
        self,
        index: int,
        request: RequestId,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        min_tokens: int = 0,
        *,
        constraint: Constraint | None = None,
        calls: ToolCalls | None = None,
        one_call: bool = False,
    ) -> None:
        self.index = index
        self.request = request
        self.tokens = 0
        self.stopped = False
        self.finish: str | None = None
        self.report = RequestReport()
        self._detokenizer = detokenizer
        self._cut = StopCut(stops) if stops else None
        self._min_tokens = min_tokens
        self._characters = 0
        self._constraint = constraint
        self._calls = calls
        self._one_call = one_call

    @property
    def broken(self) -> bool:
        """It ended by itself, and not where its grammar may end."""
        return (
            self._constraint is not None and self.finish in ENDED and not self.stopped and not self._constraint.complete
        )

    def take(self, written: Written) -> Piece:
        """What is certain now; one entry for each token that has log probabilities."""
        if self.stopped or self.finish:
            return Piece()
        if self._constraint:
            self._constraint.follow(_shown_ids(written), self._constraint.taken)
        if self._cut is None and not written.logprobs:
            self.tokens += len(written.ids)
            return self._read(self._detokenizer.push(_shown_ids(written)), [])
        return self._read(*self._take_each(written, self._cut))

    def end(self, finish: Finish, report: RequestReport) -> Piece:
        """What was held back and turned out to be text."""
        self.report = report
        rest = ""
        if not self.stopped:
            rest = self._detokenizer.flush()
            rest = rest if self._cut is None else self._cut.push(rest) + self._cut.flush()
        piece = self._read(rest, [])
        if self._calls:
            text, calls = self._calls.flush()
            piece.add(Piece(text, [], calls))
        called = self._calls is not None and self._calls.count > 0
        reason = "stop" if self.stopped else finish.reason
        self.finish = "tool_calls" if called and reason == "stop" else reason
        return piece

    def _read(self, text: str, entries: list[TokenEntry]) -> Piece:
        if self._calls is None:
            return Piece(text, entries)
        content, calls = self._calls.push(text)
        self.stopped |= self._one_call and self._calls.whole > 0
        return Piece(content, entries, calls)

    def _take_each(self, written: Written, cut: StopCut | None) -> tuple[str, list[TokenEntry]]:
        shown: list[str] = []
        entries: list[TokenEntry] = []
        visible = len(_shown_ids(written))
        for i, token in enumerate(written.ids):
            text = self._detokenizer.push((token,)) if i < visible else ""
            if i < len(written.logprobs):
                entries.append(TokenEntry(token, written.logprobs[i], self._characters))
            self._characters += len(text)
            self.tokens += 1
            if cut is None or self.tokens <= self._min_tokens:
                shown.append(text)
                continue
            shown.append(cut.push(text))
            if cut.found:
                self.stopped = True
                break
        return "".join(shown), entries


def _shown_ids(written: Written) -> tuple[int, ...]:
    finish = written.finish
    if finish is not None and finish.stop_token is not None and written.ids[-1:] == (finish.stop_token,):
        return written.ids[:-1]
    return written.ids
