"""What all messages have in common, and what several of them carry: the cast of an epoch, and outputs."""

import msgspec

from ..ids import Epoch, Peer, RequestId
from ..sampling import Finish, TokenLogprobs


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True): ...


class Cast(msgspec.Struct, frozen=True, array_like=True):
    """Who plays what in one epoch. Without P the first speaker computes the prompt itself; without RLD, P's closing frame is its yield."""

    prefill: Peer | None = None
    relay: Peer | None = None
    main: Peer | None = None

    def members(self) -> list[Peer]:
        return [peer for peer in (self.prefill, self.relay, self.main) if peer]


class Written(msgspec.Struct, frozen=True, array_like=True):
    """Outputs [start, start + len(ids)) of one request. `logprobs` is empty or as long as `ids`. `finish` is set with the very last."""

    request: RequestId
    epoch: Epoch
    start: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None

    @property
    def stop(self) -> int:
        return self.start + len(self.ids)
