"""Every subject on the bus: `pdd.v1.<site>.<role>.<worker>.<verb>`.

A peer's inbox is its own prefix, and the verb is the message's kind. A broadcast is published under its sender's
prefix and heard by who listens to that verb anywhere. The incarnation is no part of a subject: the envelope carries it,
so that the next life of a worker sees, and can refuse, what was meant for the last one.
"""

import re
from functools import lru_cache

from .ids import Peer, Role
from .messages import Beat, BlocksChanged, Message

VERSION = "pdd.v1"
BROADCASTS: dict[type[Message], str] = {Beat: "beat", BlocksChanged: "blocks"}

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_name(name: str) -> str:
    """A site's or worker's name becomes one token of a subject: letters, digits, `-` and `_`. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a site or worker: 1 to 64 letters, digits, '-' or '_'")
    return name


def to_peer(receiver: Peer, message: Message) -> str:
    """Where `message` reaches `receiver`. Raises ValueError on a wrong name."""
    return f"{_prefix(receiver.site, receiver.role, receiver.name)}.{_verb(type(message))}"


def to_all(sender: Peer, message: Message) -> str:
    """Where a broadcast is published. Raises ValueError where this kind of message is none."""
    return f"{_prefix(sender.site, sender.role, sender.name)}.{_broadcast_verb(type(message))}"


def inbox(me: Peer) -> str:
    """What a peer subscribes to, to hear all that is sent to it."""
    return f"{_prefix(me.site, me.role, me.name)}.*"


def from_all(kind: type[Message]) -> str:
    """What to subscribe to, to hear broadcasts of this kind from everyone."""
    return f"{VERSION}.*.*.*.{_broadcast_verb(kind)}"


def _broadcast_verb(kind: type[Message]) -> str:
    if kind not in BROADCASTS:
        raise ValueError(f"{kind.__name__} is no broadcast")
    return BROADCASTS[kind]


@lru_cache(maxsize=4096)
def _prefix(site: str, role: Role, name: str) -> str:
    return f"{VERSION}.{check_name(site)}.{role}.{check_name(name)}"


@lru_cache(maxsize=256)
def _verb(kind: type[Message]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
