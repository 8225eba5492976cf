"""KV over TLS 1.3 with certificates on both sides: ours get through, strangers get nothing, and nothing plain leaves the site."""

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pdd.adapters.kv_tcp import TcpKvLink
from pdd.adapters.kv_tcp_socket import TcpOptions, host_and_port
from pdd.adapters.kv_tcp_tls import SCHEME, TlsContexts, TlsFiles
from pdd.core.events import KvCloseAcked, KvDamaged, TransferFailed
from pdd.core.ids import Peer, Role
from pdd.core.wire import PROTOCOL, Hello, encode
from tests.contract.certificates import Authority
from tests.contract.kv_bench import SHAPE, End, Monotonic, T, TcpBench, ends
from tests.contract.kv_flipper import Flipper

OPTIONS = TcpOptions(connect_s=2.0, silence_s=2.0, backoff_s=0.02, backoff_max_s=0.1, half_open_max=4)
TOKENS = 3000
STRANGER = Peer("x", Role.PREFILL, "nobody", 1)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "theirs")


class TlsBench(TcpBench):
    """A sender and a receiver that need not have the same files, or any."""

    def __init__(self, sender: TlsFiles | None, receiver: TlsFiles | None) -> None:
        self.sender, self.receiver = ends(SHAPE)
        for end, tls in ((self.sender, sender), (self.receiver, receiver)):
            end.link = link(end, tls)
        assert isinstance(self.receiver.link, TcpKvLink)
        self.staging = self.receiver.link.staging
        self.address = self.receiver.link.address

    def close(self) -> None:
        for end in (self.sender, self.receiver):
            assert isinstance(end.link, TcpKvLink)
            end.link.close()

    def transfer(self, tokens: int = TOKENS) -> None:
        self.expect(0, tokens)
        self.open()
        self.offer(0, tokens)
        self.finish()


def link(end: End, tls: TlsFiles | None) -> TcpKvLink:
    made = TcpKvLink(
        end.peer, listen=("127.0.0.1", 0), fingerprint="f", source=end.pages, sink=end.sink, notes=end.notes,
        clock=Monotonic(), staging_bytes=1 << 24, options=OPTIONS, tls=tls, chunk_tokens_max=64,
    )  # fmt: skip
    made.start()
    return made


Make = Callable[[TlsFiles | None, TlsFiles | None], TlsBench]


@pytest.fixture
def make() -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def build(sender: TlsFiles | None, receiver: TlsFiles | None) -> TlsBench:
            return stack.enter_context(contextlib.closing(TlsBench(sender, receiver)))

        yield build


@contextlib.contextmanager
def call(bench: TlsBench) -> Iterator[socket.socket]:
    at = host_and_port(bench.address.removeprefix(SCHEME))
    with socket.create_connection(at, timeout=5) as connection:
        yield connection


def hears_nothing(connection: socket.socket) -> bool:
    """But a TLS alert, perhaps."""
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            heard += data
    return len(heard) < 64 and b"PDDK" not in heard


def test_kv_crosses_as_it_was_exported_and_the_address_says_how_to_connect(make: Make, ours: Authority) -> None:
    bench = make(ours.sign("p"), ours.sign("md"))
    assert bench.address.startswith(SCHEME)
    bench.transfer()
    bench.until_event(bench.sender, KvCloseAcked)
    assert bench.sender.pages.equal(bench.taken(), 0, TOKENS)


def test_a_named_receiver_must_have_that_name(make: Make, ours: Authority) -> None:
    bench = make(ours.sign("p", peer_name="md"), ours.sign("md"))
    bench.transfer()
    bench.until_event(bench.sender, KvCloseAcked)
    other = make(ours.sign("p", peer_name="md"), ours.sign("rogue"))
    other.transfer()
    assert other.until_event(other.sender, TransferFailed) == TransferFailed(T, "tls")


@pytest.mark.parametrize("stranger", ["sender", "receiver"])
def test_who_has_a_certificate_of_another_authority_gets_nothing(
    make: Make, ours: Authority, theirs: Authority, stranger: str
) -> None:
    files = {"sender": ours.sign("p"), "receiver": ours.sign("md")} | {stranger: theirs.sign("x")}
    bench = make(files["sender"], files["receiver"])
    bench.transfer()
    assert bench.until_event(bench.sender, TransferFailed) == TransferFailed(T, "tls")
    bench.until(lambda: bench.receiver.dropped("tls") >= 1)
    assert bench.receiver.landed_tokens() == 0


def test_a_stranger_that_trusts_us_and_has_no_certificate_gets_nothing(make: Make, ours: Authority) -> None:
    bench = make(ours.sign("p"), ours.sign("md"))
    context = ssl.create_default_context(cafile=ours.folder / "ca.pem")
    context.check_hostname = False
    with (
        call(bench) as connection,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
        context.wrap_socket(connection) as secret,
    ):
        secret.sendall(encode(Hello(PROTOCOL, bench.sender.peer, "f")))
        secret.recv(1)
        raise ssl.SSLError("it was answered")
    bench.until(lambda: bench.receiver.dropped("tls") >= 1)


def test_older_tls_is_refused(make: Make, ours: Authority) -> None:
    bench, files = make(ours.sign("p"), ours.sign("md")), ours.sign("old")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(files.authority)
    context.load_cert_chain(files.certificate, files.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with call(bench) as connection, pytest.raises(ssl.SSLError):
        context.wrap_socket(connection)


@pytest.mark.parametrize(
    "noise",
    [encode(Hello(PROTOCOL, STRANGER, "f")), b"GET / HTTP/1.1\r\n\r\n", bytes(200)],
    ids=["ours", "http", "zeros"],
)
def test_plain_talk_is_answered_with_nothing(make: Make, ours: Authority, noise: bytes) -> None:
    bench = make(ours.sign("p"), ours.sign("md"))
    with call(bench) as connection:
        connection.sendall(noise)
        assert hears_nothing(connection)
    bench.transfer()
    bench.until_event(bench.sender, KvCloseAcked)


@pytest.mark.parametrize("plain", ["sender", "receiver"])
def test_nothing_leaves_the_site_where_only_one_side_speaks_tls(make: Make, ours: Authority, plain: str) -> None:
    files: dict[str, TlsFiles | None] = {"sender": ours.sign("p"), "receiver": ours.sign("md")} | {plain: None}
    bench = make(files["sender"], files["receiver"])
    bench.transfer()
    assert bench.until_event(bench.sender, TransferFailed) == TransferFailed(T, "tls")


def test_within_the_site_a_receiver_without_tls_is_reached_plainly(make: Make, ours: Authority) -> None:
    bench = make(ours.sign("p"), None)
    bench.near = True
    bench.transfer()
    bench.until_event(bench.sender, KvCloseAcked)


def test_a_crowd_of_silent_strangers_does_not_keep_ours_out(make: Make, ours: Authority) -> None:
    bench = make(ours.sign("p"), ours.sign("md"))
    with contextlib.ExitStack() as stack:
        for _ in range(3 * OPTIONS.half_open_max):
            stack.enter_context(call(bench))
        bench.transfer()
        bench.until_event(bench.sender, KvCloseAcked)
    assert bench.receiver.dropped("limit") >= 1


def test_a_ciphertext_that_was_changed_on_the_way_costs_a_connection_and_no_token(make: Make, ours: Authority) -> None:
    bench = make(ours.sign("p"), ours.sign("md"))
    flipper = Flipper(host_and_port(bench.address.removeprefix(SCHEME)), at=200_000)
    with contextlib.closing(flipper):
        bench.address = SCHEME + flipper.address
        bench.transfer()
        bench.until_event(bench.sender, KvCloseAcked)
        assert flipper.flipped and not bench.receiver.all(KvDamaged)
        assert bench.sender.pages.equal(bench.taken(), 0, TOKENS)
    bench.drop()


def test_files_that_are_no_certificates_are_an_error_at_once(ours: Authority, tmp_path: Path) -> None:
    files = ours.sign("p")
    (tmp_path / "empty").touch()
    for wrong in (replace(files, key=tmp_path / "none"), replace(files, authority=tmp_path / "empty")):
        with pytest.raises(OSError):
            TlsContexts.of(wrong)
