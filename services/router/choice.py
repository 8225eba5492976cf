"""One choice of an answer: ids in, what the client may see out, and how it ended.

The token that ends it (an end token, a stop id) is counted and shows no text; tokens behind a stop string are not counted.
Text of the first `min_tokens` tokens is never cut: a stop string counts only where it begins after them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pdd.core.effects import RequestReport
from pdd.core.ids import RequestId
from pdd.core.messages import Written
from pdd.core.sampling import Finish, TokenLogprobs

from .detokenize import Detokenizer, StopCut


class TokenEntry(NamedTuple):
    """One token's log probabilities; `offset`: where its text begins in the choice's, in characters."""

    token: int
    logprobs: TokenLogprobs
    offset: int


class Choice:
    """`stopped`: a stop string was found, the machine has to be told. `finish` is set once it has ended for good."""

    def __init__(
        self, index: int, request: RequestId, detokenizer: Detokenizer, stops: Sequence[str], min_tokens: int = 0
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

    def take(self, written: Written) -> tuple[str, list[TokenEntry]]:
        """The text that is certain now, and one entry for each token that has log probabilities."""
        if self.stopped or self.finish:
            return "", []
        if self._cut is None and not written.logprobs:
            self.tokens += len(written.ids)
            return self._detokenizer.push(_shown_ids(written)), []
        return self._take_each(written, self._cut)

    def end(self, finish: Finish, report: RequestReport) -> str:
        """What was held back and turned out to be text."""
        self.report = report
        if self.stopped:
            self.finish = "stop"
            return ""
        self.finish = finish.reason
        rest = self._detokenizer.flush()
        return rest if self._cut is None else self._cut.push(rest) + self._cut.flush()

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
