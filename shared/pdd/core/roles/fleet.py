"""Who is alive, as one router sees it: from beats alone. A silent or restarted worker is lost; a name is one worker."""

from dataclasses import dataclass, field

from ..fingerprint import differing
from ..ids import Peer, Role
from ..messages import Beat, EngineLoad, LineState, WorkerCard
from ..newcomers import informed
from ..routing import Candidate


@dataclass(slots=True)
class Seen:
    peer: Peer
    card: WorkerCard
    seen_at: float
    number: int = 0
    load: EngineLoad = field(default_factory=EngineLoad)
    lines: dict[str, LineState] = field(default_factory=dict)
    draining: bool = False
    assigned_tokens: int = 0
    assigned_sequences: int = 0


class Fleet:
    def __init__(self, fingerprint: str, suspect_s: float) -> None:
        self.fingerprint, self.suspect_s = fingerprint, suspect_s
        self.workers: dict[str, Seen] = {}

    def hear(self, sender: Peer, beat: Beat, now: float) -> bool:
        """False for a beat of a former life."""
        seen = self.workers.get(sender.name)
        if seen and sender.incarnation < seen.peer.incarnation:
            return False
        if seen is None or seen.peer != sender:
            seen = self.workers[sender.name] = Seen(sender, beat.card, now)
        seen.seen_at, seen.number, seen.load, seen.draining = now, beat.number, beat.load, beat.draining
        seen.lines = {line.site: line for line in beat.lines}
        return True

    def forgive(self, seconds: float, now: float) -> None:
        """So long beats may have waited unheard."""
        for seen in self.workers.values():
            seen.seen_at = min(now, seen.seen_at + seconds)

    def lost(self, peer: Peer, now: float) -> bool:
        seen = self.workers.get(peer.name)
        return seen is None or seen.peer != peer or now - seen.seen_at > self.suspect_s

    def live(self, role: Role, now: float) -> list[Seen]:
        """Alive, of this model, taking new requests."""
        return [
            seen
            for seen in self.workers.values()
            if seen.peer.role is role
            and not seen.draining
            and not self.refuses(seen.peer, seen.card)
            and now - seen.seen_at <= self.suspect_s
        ]

    def refuses(self, peer: Peer, card: WorkerCard) -> tuple[str, ...]:
        """The fields by which it is of another model, revision, KV shape or protocol: then it is never paired."""
        return () if peer.role is Role.INDEX else differing(self.fingerprint, card.fingerprint)

    def knows(self, peer: Peer) -> bool:
        """This life of it was heard of before."""
        seen = self.workers.get(peer.name)
        return seen is not None and seen.peer == peer

    def candidates(self, role: Role, now: float, hits: dict[Peer, int]) -> list[Candidate]:
        """All that are alive."""
        found = [
            Candidate(
                seen.peer,
                seen.card,
                seen.load,
                seen.lines,
                hits.get(seen.peer, 0),
                seen.assigned_tokens,
                seen.assigned_sequences,
            )
            for seen in self.live(role, now)
        ]
        return informed(found)

    def assign(self, peer: Peer, tokens: int, sequences: int) -> None:
        """Account for work given, before any beat shows it, so that a burst spreads. Negative to take it back."""
        seen = self.workers.get(peer.name)
        if seen and seen.peer == peer:
            seen.assigned_tokens += tokens
            seen.assigned_sequences += sequences
