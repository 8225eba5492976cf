#!/usr/bin/env python3
"""Makes the credentials of two sites: certificates of one CA, an nkey for each site, a password for Redis.

Needs openssl and Python 3.11, nothing else. What is there already is kept, so that it may be run again; `--renew` makes
new certificates under the same CA and leaves keys and password alone. The CA's key never leaves this machine; site B's
operator is given the folder site-b, and no more.
"""

import argparse
import base64
import binascii
import hashlib
import ipaddress
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CA_DAYS, SITE_DAYS = 3650, 397
CURVE = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1")

# An nkey is base32 of kind, 32 bytes of Ed25519, CRC-16/XMODEM in little endian (github.com/nats-io/nkeys).
SEED, USER = 18 << 3, 20 << 3
ED25519_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")  # what precedes the 32 bytes of a private key in DER


@dataclass(frozen=True)
class Site:
    """`hosts`: the names that others call its broker and its collector by."""

    name: str
    hosts: tuple[str, ...]


def main() -> None:
    asked = _arguments()
    try:
        make(asked.into, asked.site_a_host, asked.site_b_host, renew=asked.renew)
    except FileNotFoundError as error:
        sys.exit(f"certs: {error.filename} is not installed")
    except subprocess.CalledProcessError as error:
        sys.exit(f"certs: {' '.join(error.cmd[:2])} failed:\n{error.stderr.decode()}")
    print(f"credentials are in {asked.into}; give site B the folder {asked.into / 'site-b'} and nothing else of it")


def make(into: Path, site_a_hosts: list[str], site_b_hosts: list[str], *, renew: bool = False) -> None:
    """Raises FileNotFoundError without openssl, CalledProcessError where it fails."""
    into.mkdir(mode=0o700, parents=True, exist_ok=True)  # keeps others out of the folders below, which containers read
    ca = _authority(into)
    site_a = Site("site-a", ("nats-a", "jaeger", "prometheus", "localhost", "127.0.0.1", *site_a_hosts))
    site_b = Site("site-b", ("nats-b", "localhost", "127.0.0.1", *site_b_hosts))
    users = {site.name: _site(into / site.name, site, ca, renew=renew) for site in (site_a, site_b)}
    seed_b = (into / "site-b" / "services.nk").read_text().strip()
    _write(into / "site-a" / "broker.conf", f"SITE_A: {users['site-a']}\nSITE_B: {users['site-b']}\n")
    _write(into / "site-b" / "broker.conf", f"SITE_B: {users['site-b']}\nSITE_B_SEED: {seed_b}\n")
    _redis(into / "site-a")


def _authority(into: Path) -> Path:
    certificate, key = into / "ca.pem", into / "ca.key"
    if not certificate.exists():
        _openssl("genpkey", *CURVE, "-out", key)
        key.chmod(0o600)
        subject = ("-subj", "/CN=PDD sites")
        told = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
        _signed(certificate, key, subject, told, CA_DAYS, ("-signkey", key))
    return into


def _site(folder: Path, site: Site, ca: Path, *, renew: bool) -> str:
    """Returns the public nkey of the site's services and of its broker."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    certificate, key, seed = folder / "cert.pem", folder / "key.pem", folder / "services.nk"
    _write(folder / "ca.pem", (ca / "ca.pem").read_text())
    if renew or not certificate.exists():
        _openssl("genpkey", *CURVE, "-out", key)
        key.chmod(0o644)
        names = ",".join(f"{'IP' if _is_address(host) else 'DNS'}:{host}" for host in site.hosts)
        told = (
            f"basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nsubjectAltName={names}\n"
            "extendedKeyUsage=serverAuth,clientAuth\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        signer = ("-CA", ca / "ca.pem", "-CAkey", ca / "ca.key", "-set_serial", f"0x{secrets.token_hex(16)}")
        _signed(certificate, key, ("-subj", f"/CN={site.name}"), told, SITE_DAYS, signer)
    if not seed.exists():
        _write(seed, nkey_seed(secrets.token_bytes(32)) + "\n")
    return nkey_of(seed.read_text().strip())


def _signed(
    certificate: Path,
    key: Path,
    subject: tuple[str, str],
    extensions: str,
    days: int,
    signer: tuple[str | Path, ...],
) -> None:
    request, told = certificate.with_suffix(".csr"), certificate.with_suffix(".ext")
    told.write_text(extensions)
    try:
        _openssl("req", "-new", "-key", key, *subject, "-out", request)
        _openssl(
            *("x509", "-req", "-sha256", "-days", str(days), "-in", request, "-extfile", told),
            *(*signer, "-out", certificate),
        )
        certificate.chmod(0o644)
    finally:
        request.unlink(missing_ok=True)
        told.unlink()


def _redis(folder: Path) -> None:
    password, rules = folder / "redis.password", folder / "redis.acl"
    if not password.exists():
        _write(password, secrets.token_urlsafe(32) + "\n")
    digest = hashlib.sha256(password.read_text().strip().encode()).hexdigest()
    _write(rules, f"user default on sanitize-payload #{digest} ~* &* +@all -@dangerous +info\n")


def nkey_seed(secret: bytes) -> str:
    """A user's seed from 32 random bytes."""
    return _base32(bytes((SEED | USER >> 5, (USER & 31) << 3)) + secret)


def nkey_of(seed: str) -> str:
    """The public key that belongs to a user's seed."""
    secret = base64.b32decode(seed + "=" * (-len(seed) % 8))[2:34]
    told = subprocess.run(
        ["openssl", "pkey", "-inform", "DER", "-pubout", "-outform", "DER"],
        input=ED25519_PKCS8 + secret,
        capture_output=True,
        check=True,
    )
    return _base32(bytes((USER,)) + told.stdout[-32:])


def _base32(data: bytes) -> str:
    return base64.b32encode(data + binascii.crc_hqx(data, 0).to_bytes(2, "little")).decode().rstrip("=")


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o644)  # containers read it under another user; the folder above keeps everybody else out


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], capture_output=True, check=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path("certs"), help="the folder to make (default: certs)")
    for site in ("a", "b"):
        parser.add_argument(
            f"--site-{site}-host",
            action="append",
            default=[],
            metavar="NAME",
            help=f"a host name or address of site {site} as the other site calls it; may be repeated",
        )
    parser.add_argument("--renew", action="store_true", help="new certificates, under the same CA")
    return parser.parse_args()


if __name__ == "__main__":
    main()
