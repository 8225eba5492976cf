"""Ids as text, for servers that take no ids: one common word for each id, so that a token is about a token anywhere.

An answer's text stands in a history as ids of its own: the first of them is written out as that text, the rest as nothing.
"""

from collections.abc import Sequence

ANSWERS_FROM = 1 << 30  # past every vocabulary

_TEXT = (
    "time way day man thing life child world school state family student group country problem hand part place case week "
    "company system program question work government number night point home water room mother area money story fact month "
    "lot right study book eye job word business issue side kind head house service friend father power hour game line end "
    "member law car city community name president team minute idea body information back parent face level office door "
    "health person art war history party result change morning reason research girl guy moment air teacher force education"
)
_COMMON = _TEXT.split()


class Words:
    def __init__(self) -> None:
        self._answers: list[str] = []

    def keep(self, text: str, count: int) -> tuple[int, ...]:
        """Ids that stand for an answer of `count` tokens."""
        self._answers.append(text)
        first = ANSWERS_FROM + 2 * len(self._answers)
        return (first, *(first + 1 for _ in range(count - 1)))

    def text(self, ids: Sequence[int]) -> str:
        return "".join(self._word(token) for token in ids)

    def _word(self, token: int) -> str:
        if token < ANSWERS_FROM:
            return " " + _COMMON[token % len(_COMMON)]
        number, rest = divmod(token - ANSWERS_FROM, 2)
        return "" if rest else self._answers[number - 1]
