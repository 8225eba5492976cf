"""What the text layer is told. Every wait and every buffer it has is bounded by one of these."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    model: str  # as clients name it
    max_context: int  # tokens of prompt and answer together
    max_body_bytes: int = 8 << 20
    body_s: float = 30.0  # for a request's body to arrive
    keep_alive_s: float = 15.0  # a stream that is silent so long gets a comment
    stall_s: float = 30.0  # a client that reads nothing for so long is gone
    report_s: float = 0.5  # after a stop string, how long the closing report is waited for
    max_unread_tokens: int = 65_536  # a client so far behind is gone
    report: bool = False  # allow `x-pdd-report`
    keys: Mapping[bytes, int] = field(default_factory=dict, repr=False)  # see access.py; none: everybody may ask
    cors_origins: tuple[str, ...] = ()  # whose pages may ask from a browser; ("*",): all
    test_hooks: bool = False  # allow `x-pdd-handover-after` and `x-pdd-route`
