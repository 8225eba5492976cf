"""Singular traffic: long input, short output. When RLD is done before the KV has crossed, the rest of the transfer is cut.

A cut saves the line, and costs MD a prefix it never learns. So cuts are capped as a share of requests, and withheld while P's
cache runs ahead of MD's: otherwise more misses at MD would send more requests to RLD, and so on until RLD runs away.
"""

from dataclasses import dataclass

MEMORY = 1 / 64  # weight of the latest request in the running means


@dataclass(frozen=True, slots=True)
class SingularSettings:
    """Published traffic has 3-4 % such requests."""

    cap: float = 0.05  # share of requests, never passed; below MEMORY none is cut
    gap: float = 0.10  # P-hit minus MD-hit, as a share of prompt tokens
    patience_s: float = 30.0  # how long a withheld cut's transfer, or a warm-up, may go on after the client was served
    warm_up: bool = False  # whatever RLD ended crosses later, while nobody waits


class Singular:
    """The guard, as one router keeps it."""

    def __init__(self, given: SingularSettings) -> None:
        self.given = given
        self.share = given.cap  # of requests that were cut, a running mean: who has seen nothing yet cuts nothing
        self._at_prefill = self._at_main = self._prompt = 0.0  # tokens a request: hits, and all

    @property
    def at_prefill(self) -> float:
        """P's hits as a share of prompt tokens, over recent requests."""
        return self._at_prefill / self._prompt if self._prompt else 0.0

    @property
    def at_main(self) -> float:
        return self._at_main / self._prompt if self._prompt else 0.0

    @property
    def gap(self) -> float:
        """How far P's cache is ahead of MD's, token-weighted over recent requests."""
        return self.at_prefill - self.at_main

    def served(self, prompt: int, hit_at_prefill: int, hit_at_main: int) -> None:
        """A request whose hits at both are known."""
        self._at_prefill += MEMORY * (hit_at_prefill - self._at_prefill)
        self._at_main += MEMORY * (hit_at_main - self._at_main)
        self._prompt += MEMORY * (prompt - self._prompt)

    def why_not(self) -> str | None:
        """Why a cut is withheld now; None: it may be made."""
        if self.gap > self.given.gap:
            return "gap"
        if self._share_after(was_cut=True) > self.given.cap:
            return "cap"
        return None

    def ended(self, was_cut: bool) -> None:
        self.share = self._share_after(was_cut)

    def _share_after(self, was_cut: bool) -> float:
        return self.share + MEMORY * (was_cut - self.share)


def finishes_first(outputs_left: int, step_s: float, crossing_s: float) -> bool:
    """Will RLD write all it may before the KV has crossed? Limits are known, an earlier end is not."""
    return outputs_left * step_s < crossing_s
