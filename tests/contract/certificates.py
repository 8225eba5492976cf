"""Certificates for tests, made by openssl: an authority, what it signs, and a stranger's authority that looks the same."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from pdd.adapters.kv_tcp_tls import TlsFiles

CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]


@dataclass(frozen=True)
class Authority:
    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "Authority":
        folder.mkdir()
        _openssl(
            "req",
            "-x509",
            *CURVE,
            "-subj",
            "/CN=pdd test authority",
            "-keyout",
            folder / "ca.key",
            "-out",
            folder / "ca.pem",
        )
        return cls(folder)

    def sign(self, name: str, peer_name: str = "") -> TlsFiles:
        """A certificate for DNS:`name`, good for both sides of a connection."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        _openssl(
            "req", "-x509", *CURVE, "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}",
            "-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=serverAuth,clientAuth",
            "-CA", self.folder / "ca.pem", "-CAkey", self.folder / "ca.key", "-keyout", key, "-out", certificate,
        )  # fmt: skip
        return TlsFiles(certificate, key, self.folder / "ca.pem", peer_name)


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
