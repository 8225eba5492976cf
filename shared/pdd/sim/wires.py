"""The bus of a simulated fleet: messages as objects, one delay within a site and one between sites, nothing lost."""

from collections.abc import Callable
from functools import partial

from ..core.effects import Broadcast, Send
from ..core.events import Event, Heard
from ..core.ids import Peer
from ..core.messages import Assignment, Message
from .world import World

ID_BYTES = 4  # of a token id in a command, about


class Wires:
    def __init__(self, world: World, near_s: float, far_s: float) -> None:
        self.world, self.near_s, self.far_s = world, near_s, far_s
        self.command_bytes = 0  # prompts that cross between sites inside commands
        self._posts: dict[str, tuple[str, Callable[[Event], None]]] = {}
        self._listeners: dict[type[Message], list[tuple[str, str, Callable[[Event], None]]]] = {}

    def attach(self, me: Peer, post: Callable[[Event], None], listens: tuple[type[Message], ...] = ()) -> None:
        """Under the peer's name; a new life takes the name over."""
        self.detach(me.name)
        self._posts[me.name] = (me.site, post)
        for kind in listens:
            self._listeners.setdefault(kind, []).append((me.name, me.site, post))

    def detach(self, name: str) -> None:
        self._posts.pop(name, None)
        for kind, listeners in self._listeners.items():
            self._listeners[kind] = [one for one in listeners if one[0] != name]

    def send(self, sender: Peer, effect: Send) -> None:
        found = self._posts.get(effect.to.name)
        if found is None:
            return
        site, post = found
        if site != sender.site and isinstance(effect.message, Assignment):
            self.command_bytes += ID_BYTES * len(effect.message.ids)
        delay = self.near_s if site == sender.site else self.far_s
        self.world.call_later(delay, partial(post, Heard(sender, effect.to, effect.message)))

    def broadcast(self, sender: Peer, effect: Broadcast) -> None:
        heard = Heard(sender, None, effect.message)
        for name, site, post in self._listeners.get(type(effect.message), ()):
            if name != sender.name:
                self.world.call_later(self.near_s if site == sender.site else self.far_s, partial(post, heard))
