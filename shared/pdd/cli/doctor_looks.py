"""The doctor's looks. Each takes a Place and says what it found; a foreign library's error becomes a finding, never a stack."""

import asyncio
import email.utils
import platform
import ssl
import time
from importlib.metadata import version
from typing import Any

import httpx
import nats
import nats.errors
from redis.asyncio import Redis
from redis.exceptions import RedisError

from ..adapters.model_files import fingerprint
from ..adapters.tls_look import look_at_certificate
from ..core import PROTOCOL_VERSION, codec, subjects
from ..core.errors import FrameError, PddError
from ..core.ids import Peer, Role
from ..core.messages import Beat, Envelope
from .doctor_place import Finding, Place, bad, doubtful, good, skipped

LISTEN_S = 2.0  # four beats
PATIENCE_S = 3.0
FEW_DAYS, CLOCK_S, SLOW_BROKER_S = 30, 2.0, 0.05
OLDEST_REDIS = 7
WORKERS = (Role.PREFILL, Role.RELAY, Role.MAIN)


async def versions(place: Place) -> list[Finding]:
    found = f"pdd {version('pdd')}, protocol {PROTOCOL_VERSION}, Python {platform.python_version()}, site {place.site}"
    return [good("versions", found)]


async def certificates(place: Place) -> list[Finding]:
    folder = place.credentials.folder
    if folder is None:
        return [skipped("certificates", "PDD_CREDENTIALS_DIR is not set: plain connections")]
    try:
        certificate = look_at_certificate(folder)
    except (OSError, ssl.SSLError) as error:
        return [bad("certificates", f"{folder}: {error}", "`make certs`, or copy this site's folder again")]
    days = f"{certificate.days_left:.0f} days left, for {', '.join(certificate.names)}"
    if certificate.days_left < FEW_DAYS:
        return [doubtful("certificates", days, '`make certs ARGS="--renew"`, then restart this site')]
    return [good("certificates", days)]


async def own_port(place: Place) -> list[Finding]:
    if place.http_port is None:
        return [skipped("service", "PDD_HTTP_PORT is not set: no service of this environment is looked at")]
    answer = await _get(f"http://127.0.0.1:{place.http_port}/ready")
    if answer is None:
        return [bad("service", f"nothing answers on port {place.http_port}", "its log says why it does not start")]
    status = answer.json().get("status")
    if answer.is_success:
        return [good("service", f"{answer.json().get('service')} on port {place.http_port} is {status}")]
    return [doubtful("service", f"port {place.http_port}: {status}", "`disconnected`: look at the broker")]


# -- broker and fleet -------------------------------------------------------------------------------------------------


async def broker(place: Place) -> list[Finding]:
    beats: dict[str, tuple[Peer, Beat]] = {}

    async def heard(message: Any) -> None:
        try:
            envelope = codec.decode(message.data)
        except FrameError:
            return
        _note(beats, envelope)

    try:
        client = await _dial(place)
    except (nats.errors.Error, OSError, ssl.SSLError, TimeoutError) as error:
        return [bad("broker", f"{_safe(place.nats_url)}: {error!r}", _advice(error))]
    try:
        round_trip_s = min([await _round_trip(client) for _ in range(3)])  # a busy machine is not a slow broker
        # Site B may hear its own beats alone: the second subscription is then refused, and that is right.
        for subject in (f"{subjects.VERSION}.{place.site}.*.*.beat", subjects.from_all(Beat)):
            await client.subscribe(subject, cb=heard)
        await asyncio.sleep(LISTEN_S)
    finally:
        await client.close()
    number = str(client.connected_server_version).strip("<>")
    found = f"{_safe(place.nats_url)}: {number}, {round_trip_s * 1e3:.1f} ms"
    slow = round_trip_s > SLOW_BROKER_S
    told = doubtful("broker", found, "is it this site's broker?") if slow else good("broker", found)
    return [told, *_fleet(place, list(beats.values())), await kv_ports(place, list(beats.values()))]


async def _round_trip(client: Any) -> float:
    began = time.monotonic()
    await client.flush(PATIENCE_S)
    return time.monotonic() - began


def _note(beats: dict[str, tuple[Peer, Beat]], envelope: Envelope) -> None:
    if isinstance(envelope.message, Beat) and envelope.sender.role in WORKERS:
        beats[envelope.sender.name] = (envelope.sender, envelope.message)


async def _dial(place: Place) -> Any:
    """Raises what went wrong at the last attempt. Later errors are no news: site B's second subscription is refused."""
    errors: list[Exception] = []

    async def noted(error: Exception) -> None:
        errors.append(error)

    try:
        return await nats.connect(
            place.nats_url,
            tls=place.credentials.tls(),
            nkeys_seed_str=place.credentials.nkey_seed,
            connect_timeout=int(PATIENCE_S),
            allow_reconnect=False,
            max_reconnect_attempts=1,  # 0 would mean for ever
            reconnect_time_wait=0,
            error_cb=noted,
        )
    except nats.errors.NoServersError as error:
        raise (errors[-1] if errors else error) from None


def _fleet(place: Place, beats: list[tuple[Peer, Beat]]) -> list[Finding]:
    counts = {role: sum(peer.role is role for peer, _ in beats) for role in WORKERS}
    heard = ", ".join(f"{count} {role}" for role, count in counts.items() if count) or "nobody"
    expected = WORKERS if place.site == "a" else (Role.MAIN,)  # site B hears its own alone
    missing = [str(role) for role in expected if not counts[role]]
    found = [
        bad(
            "workers",
            f"{heard}; no {' and no '.join(missing)}",
            "start them; site B's come through the leafnode: its broker's log",
        )
        if missing
        else good("workers", heard)
    ]
    draining = [peer.name for peer, beat in beats if beat.draining]
    if draining:
        found.append(doubtful("draining", ", ".join(draining), "they take nothing new: restart them to undo"))
    found.append(_fingerprints(place, beats))
    if place.site == "a":
        found.append(_lines(beats))
    return found


def _fingerprints(place: Place, beats: list[tuple[Peer, Beat]]) -> Finding:
    seen = {beat.card.fingerprint for _, beat in beats}
    if place.model_dir is not None:
        try:
            seen.add(fingerprint(place.model_dir))
        except PddError as error:
            return bad("model", str(error), "PDD_MODEL_DIR must name a whole model")
    if len(seen) > 1:
        named = ", ".join(f"{peer.name} {beat.card.fingerprint[:8]}" for peer, beat in beats)
        return bad("model", f"{len(seen)} different ones: {named}", "give all sites the same model folder and version")
    return good("model", f"fingerprint {next(iter(seen), 'unknown')}, the same everywhere")


async def kv_ports(place: Place, beats: list[tuple[Peer, Beat]]) -> Finding:
    """Where P dials: only from where P stands does it mean anything."""
    if not await _sends_kv(place):
        return skipped("kv", "`docker compose exec prefill pdd doctor` dials the ports that take KV")
    takers = {peer.name: beat.card.kv_address for peer, beat in beats if beat.card.kv_address}
    reached = await asyncio.gather(*(_reached(address) for address in takers.values()))
    closed = [f"{name} at {takers[name]}" for name, open_ in zip(takers, reached, strict=True) if not open_]
    if closed:
        return bad(
            "kv", f"out of reach: {', '.join(closed)}", "open that port for this site, or correct KV_ADDRESS there"
        )
    return good("kv", f"P reaches {', '.join(takers) or 'nobody yet'}")


async def _sends_kv(place: Place) -> bool:
    if place.http_port is None:
        return place.router is not None  # a laptop: all stand on one host
    answer = await _get(f"http://127.0.0.1:{place.http_port}/health")
    return answer is not None and answer.json().get("service") == Role.PREFILL


async def _reached(address: str) -> bool:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, ValueError):  # TimeoutError is an OSError
        return False
    writer.close()
    return True


def _lines(beats: list[tuple[Peer, Beat]]) -> Finding:
    lines = [(peer, line) for peer, beat in beats for line in beat.lines if line.site != peer.site and line.bytes_per_s]
    if not lines:
        return skipped("line", "P has not measured it yet: too little KV has crossed since it started")
    told = [
        f"{peer.name} to {line.site}: {line.bytes_per_s * 8e-6:.0f} Mbit/s, {line.rtt_s * 1e3:.0f} ms"
        for peer, line in lines
    ]
    return good("line", "; ".join(told))


def _safe(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _advice(error: Exception) -> str:
    if isinstance(error, nats.errors.AuthorizationError) or "uthorization" in str(error):
        return "the broker does not know this key: the credentials of another site, or of another `make certs`"
    if isinstance(error, ssl.SSLError):
        return "its certificate is not of our CA, or does not name this host: see `certificates`"
    return "start it, or correct PDD_NATS_URL"


# -- Redis, router, collector -----------------------------------------------------------------------------------------


async def redis(place: Place) -> list[Finding]:
    if place.redis_url is None:
        return [skipped("redis", "PDD_REDIS_URL is not set: it is of site A's index alone")]
    client = Redis.from_url(
        place.redis_url,
        password=place.credentials.redis_password,
        socket_timeout=PATIENCE_S,
        socket_connect_timeout=PATIENCE_S,
    )
    try:
        told = await client.info("server")
        seconds, micros = await client.time()
    except (OSError, RedisError) as error:
        return [
            bad("redis", f"{_safe(place.redis_url)}: {error}", "start it; requests are served meanwhile, without hits")
        ]
    finally:
        await client.aclose()
    number = str(told["redis_version"])
    found = f"{_safe(place.redis_url)}: version {number}"
    clock = _clock("redis", seconds + micros / 1e6)
    if int(number.partition(".")[0]) < OLDEST_REDIS:
        return [bad("redis", found, f"{OLDEST_REDIS} or newer is needed"), *clock]
    return [good("redis", found), *clock]


async def router(place: Place) -> list[Finding]:
    if place.router is None:
        return [skipped("router", "its own container tells: `docker compose exec router pdd doctor`, under `service`")]
    answer = await _get(f"http://{place.router}/ready")
    if answer is None:
        return [bad("router", f"nothing answers on {place.router}", "its log says why it does not start")]
    if not answer.is_success:
        return [bad("router", f"{place.router}: {answer.json().get('status')}", "wait, or look at the broker")]
    return [good("router", f"{place.router} is ready")]


async def collector(place: Place) -> list[Finding]:
    """Also compares clocks: across the sites, spans stand in one trace by their wall clocks."""
    if place.otlp_endpoint is None:
        return [skipped("traces", "PDD_OTLP_ENDPOINT is not set")]
    try:
        answer = await _get(f"{place.otlp_endpoint}/v1/traces", place.credentials.tls() or True)
    except PddError as error:
        return [bad("traces", str(error), "see `certificates`")]
    if answer is None:
        return [doubtful("traces", f"{place.otlp_endpoint} does not answer", "spans are lost; requests do not suffer")]
    date = email.utils.parsedate_to_datetime(answer.headers["date"]).timestamp() if "date" in answer.headers else None
    return [good("traces", place.otlp_endpoint), *(_clock("the collector", date) if date else [])]


def _clock(whose: str, theirs: float) -> list[Finding]:
    ahead_s = time.time() - theirs
    found = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} {whose}"
    if abs(ahead_s) > CLOCK_S:
        return [doubtful("clock", found, "NTP at both sites: traces and certificates depend on it, requests do not")]
    return [good("clock", found)]


async def _get(url: str, verify: ssl.SSLContext | bool = True) -> httpx.Response | None:
    try:
        async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False, verify=verify) as client:
            return await client.get(url)
    except (httpx.HTTPError, OSError):
        return None
