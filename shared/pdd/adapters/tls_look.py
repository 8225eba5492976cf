"""What a peer of our sites would think of our certificate: a TLS handshake with ourselves, in memory."""

import ssl
import time
from dataclasses import dataclass
from pathlib import Path

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Certificate:
    names: tuple[str, ...]  # that it may be called by
    days_left: float


def look_at_certificate(folder: Path) -> Certificate:
    """Raises OSError or ssl.SSLError where the key does not fit, the CA did not sign it, or it is not valid now."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    client = ssl.create_default_context(cafile=folder / "ca.pem")
    client.check_hostname = False
    told = _handshake(client, server)
    names = tuple(str(entry[1]) for entry in told.get("subjectAltName", ()))
    return Certificate(names, (ssl.cert_time_to_seconds(str(told["notAfter"])) - time.time()) / DAY_S)


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, tuple[tuple[str, str], ...]]:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return dict(ours.getpeercert() or {})  # type: ignore[arg-type]
