"""What a process shows to brokers, collectors and Redis, and whom it believes: one folder, as `make certs` fills it.

Names in it: ca.pem, cert.pem, key.pem, services.nk (an nkey's seed), redis.password. What is not there is not used. A folder
that cannot be read, and a key that does not fit its certificate, raise CredentialsError.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import PddError


class CredentialsError(PddError):
    """A file of the credentials is unreadable or wrong; the message names it."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """`folder` None: nothing is shown and only plain connections are made."""

    folder: Path | None = None

    def tls(self) -> ssl.SSLContext | None:
        """For a client of our own sites: believes their CA alone, shows our certificate if there is one."""
        ca = self.file("ca.pem")
        if ca is None:
            return None
        certificate, key = self.file("cert.pem"), self.file("key.pem")
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if certificate and key:
                context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise CredentialsError(f"the certificates in {self.folder} cannot be used: {error}") from error
        return context

    def certificate(self) -> tuple[Path, Path, Path] | None:
        """Certificate, key and authority, where all are there."""
        found = [self.file(name) for name in ("cert.pem", "key.pem", "ca.pem")]
        if self.folder is None or None in found:
            return None
        return self.folder / "cert.pem", self.folder / "key.pem", self.folder / "ca.pem"

    @property
    def nkey_seed(self) -> str | None:
        return self._text("services.nk")

    @property
    def redis_password(self) -> str | None:
        return self._text("redis.password")

    def file(self, name: str) -> str | None:
        """Its path, if it is there."""
        if self.folder is None:
            return None
        file = self.folder / name
        return str(file) if file.exists() else None

    def _text(self, name: str) -> str | None:
        file = self.file(name)
        if file is None:
            return None
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise CredentialsError(f"cannot read {file}: {error.strerror}") from error


NO_CREDENTIALS = Credentials()
