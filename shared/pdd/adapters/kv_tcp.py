"""KvLink over TCP: bulk KV on direct sockets, from the engine's memory to the receiver's staging memory.

One line for each receiver's address, with a few connections: receivers never wait for each other. All lines to one site keep one
pace and one estimate of what it can carry. The sink, notes and source are called from the link's own threads. No call waits for
the network.
"""

import threading
from collections.abc import Mapping
from functools import partial
from itertools import count

from ..core.effects import CloseTransfer, ExpectKv, OfferKv, OpenTransfer, PaceLine
from ..core.events import Event, KvCloseAcked, TransferFailed
from ..core.ids import Peer, TransferId
from ..core.outbox import Outbox
from ..core.wire import PROTOCOL, Hello
from ..ports import Clock, KvChunk, KvSource, Notes, Sink
from .kv_codecs import Codec
from .kv_intake import Intake, wire_shape
from .kv_nixl import NAME, NixlCarrier
from .kv_report import Site
from .kv_tcp_lane import Means
from .kv_tcp_line import Line
from .kv_tcp_listener import KvListener
from .kv_tcp_socket import TcpOptions
from .kv_tcp_tls import SCHEME, TlsContexts, TlsFiles
from .staging import Staging

CHUNK_TOKENS_MAX = 4096
NONE: Mapping[str, Codec] = {}


class TcpKvLink:
    """Satisfies ports.KvLink. `advertise`: `host:port` as senders reach us, where that is not what we bind.

    `tls`: who connects must have a certificate of our authority, and other sites are connected to so alone; raises OSError where
    the files are bad. `codecs`: how KV may be packed on its way to other sites. `carrier`: takes KV within the site, where both
    sides have one. `owned`: lines to other sites have an owner who is asked for leases (LineWanted, PaceLine).
    """

    def __init__(
        self,
        me: Peer,
        *,
        listen: tuple[str, int],
        fingerprint: str,
        source: KvSource,
        sink: Sink,
        notes: Notes,
        clock: Clock,
        staging_bytes: int,
        advertise: str | None = None,
        chunk_tokens_max: int = CHUNK_TOKENS_MAX,
        options: TcpOptions | None = None,
        tls: TlsFiles | None = None,
        codecs: Mapping[str, Codec] = NONE,
        carrier: NixlCarrier | None = None,
        owned: bool = False,
    ) -> None:
        self._source, self._sink, self._notes, self._clock = source, sink, notes, clock
        self._options = options or TcpOptions()
        self._chunk_tokens_max, self._advertise = chunk_tokens_max, advertise
        contexts = TlsContexts.of(tls) if tls else None
        self._carrier = carrier
        if carrier:
            codecs = {**codecs, NAME: carrier.codec}
        self._means = Means(Hello(PROTOCOL, me, fingerprint), source, notes, clock, self._options, contexts, codecs)
        self.staging = Staging(staging_bytes, source.kv_shape)
        if carrier:
            carrier.register(self.staging.memory)
        self._intake = Intake(
            me, fingerprint, self.staging, sink, notes, credit_bytes=self._options.credit_bytes,
            codecs=codecs,
        )  # fmt: skip
        self._listener = KvListener(listen, self._intake, self._options, contexts)
        self._lock = threading.RLock()
        self._lines: dict[str, Line] = {}
        self._line_of: dict[TransferId, Line] = {}
        self._site, self._owned = me.site, owned
        self._sites: dict[str, Site] = {}
        self._attempts = count(1)
        self._closed = False

    def start(self) -> None:
        """Bind and take connections. Raises OSError where the port is taken."""
        bound = self._listener.start()
        self._intake.address = (SCHEME if self._means.tls else "") + (self._advertise or bound)

    def close(self) -> None:
        """Ends every connection and thread; what was under way fails."""
        with self._lock:
            self._closed = True
            lines = list(self._lines.values())
        for line in lines:
            line.close()
        for line in lines:
            line.join()
        self._listener.close()
        if self._carrier:
            self._carrier.forget(self.staging.memory)

    @property
    def address(self) -> str:
        """Where senders reach us."""
        return self._intake.address

    # -- receiving ----------------------------------------------------------------------------------------------------

    def expect(self, effect: ExpectKv) -> None:
        self._intake.expect(effect)

    def take(self, transfer: TransferId) -> list[KvChunk]:
        return self._intake.take(transfer)

    def drop(self, transfer: TransferId) -> None:
        self._intake.drop(transfer)

    # -- sending ------------------------------------------------------------------------------------------------------

    def open_transfer(self, effect: OpenTransfer) -> None:
        with self._lock:
            if self._closed:
                return
            line = self._lines.get(effect.address)
            before = self._line_of.get(effect.transfer)
            if before and before is not line:
                before.cancel(effect.transfer)
            if line is None:
                line = self._lines[effect.address] = self._make_line(effect)
            self._line_of[effect.transfer] = line
            line.open(effect, next(self._attempts))

    def offer(self, effect: OfferKv) -> None:
        with self._lock:
            if line := self._line_of.get(effect.transfer):
                line.offer(effect.transfer, effect.start, effect.stop)
                self._tell(self._sites[line.site], [])

    def close_transfer(self, effect: CloseTransfer) -> None:
        with self._lock:
            if line := self._line_of.get(effect.transfer):
                line.close_transfer(effect.transfer, effect.closing)

    def cancel(self, transfer: TransferId) -> None:
        with self._lock:
            if line := self._line_of.pop(transfer, None):
                line.cancel(transfer)

    def _make_line(self, effect: OpenTransfer) -> Line:
        for address in [address for address, line in self._lines.items() if line.resting]:
            del self._lines[address]
        name = effect.receiver.site
        site = self._sites.setdefault(name, Site.to(name, self._owned and name != self._site, self._options.paced))
        outbox = Outbox(
            wire_shape(self._source.kv_shape),
            site.pace,
            silence_s=self._options.silence_s,
            chunk_tokens_max=self._chunk_tokens_max,
            streams=self._options.streams_near if effect.near else self._options.streams_far,
            codecs=() if effect.near else [name for name in self._means.codecs if name != NAME],
            carrier=NAME if effect.near and self._carrier else "",
        )
        tell = partial(self._tell, site)
        return Line(effect.address, name, effect.near, outbox, self._means, tell, self._lock)

    def pace(self, effect: PaceLine) -> None:
        with self._lock:
            if site := self._sites.get(effect.site):
                site.pace.lease(effect.lease_bytes_per_s, effect.share_bytes_per_s, effect.until)
                self._tell(site, [])

    def _tell(self, site: Site, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, KvCloseAcked | TransferFailed):
                self._line_of.pop(event.transfer, None)
            self._sink(event)
        now = self._clock.now()
        lines = [line for line in self._lines.values() if line.outbox.pace is site.pace]
        busy = [line for line in lines if line.outbox.active]
        each = site.pace.limit(now) / max(1, sum(line.carrying for line in busy))
        for line in busy:
            line.keep_pace(each)
        site.tell((line.outbox for line in lines), now, self._sink, self._notes)
