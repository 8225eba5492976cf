"""Router to workers: commands, and what ends or renews them."""

from ..ids import Epoch, Peer, RequestId
from ..sampling import Sampling
from .base import Cast, Message


class Assignment(Message, frozen=True, array_like=True, tag=True):
    """One role in one epoch of a request. `ids` are the prompt and the outputs that the client already has (`base` of them).

    `handover_after` forces the fence (0: the policy decides); `relay_bound` is the most outputs RLD may write beyond `base`.
    """

    request: RequestId
    epoch: Epoch
    cast: Cast
    ids: tuple[int, ...]
    prompt_len: int
    sampling: Sampling
    cache_salt: str = ""
    traceparent: str = ""
    policy: str = "one_shot"
    handover_after: int = 0
    relay_bound: int = 0  # 0: none
    rtt_s: float = 0.0  # between RLD's site and MD's, as P measures it
    warm_up: bool = False  # nobody waits: MD takes the prompt and does not speak, and a worker may give it up

    @property
    def base(self) -> int:
        return len(self.ids) - self.prompt_len


class StartPrefill(Assignment, frozen=True, array_like=True, tag=True): ...


class PrepareRelay(Assignment, frozen=True, array_like=True, tag=True): ...


class PrepareMain(Assignment, frozen=True, array_like=True, tag=True): ...


class Release(Message, frozen=True, array_like=True, tag=True):
    """Free everything of this request up to this epoch. Repeated until `Released`."""

    request: RequestId
    epoch: Epoch


class Ask(Message, frozen=True, array_like=True, tag=True):
    """Send outputs from `start` on again, whoever wrote them."""

    request: RequestId
    epoch: Epoch
    start: int


class Cut(Message, frozen=True, array_like=True, tag=True):
    """Router to RLD: promise never to yield, so that the transfer to MD may be dropped."""

    request: RequestId
    epoch: Epoch


class StopSending(Message, frozen=True, array_like=True, tag=True):
    """Router to P: this receiver has left the cast."""

    request: RequestId
    epoch: Epoch
    receiver: Peer


class Renew(Message, frozen=True, array_like=True, tag=True):
    """The answer to a beat: for each listed request of this router its current epoch, or 0 where it has ended."""

    epochs: dict[RequestId, Epoch]
