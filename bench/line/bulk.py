"""One large transfer against iperf3 with as many streams: over a shaped line, and over loopback with what each layer costs."""

from typing import Any

from infra.wan.namespaces import Shape
from pdd.adapters.kv_nixl import installed

from .bare import bare_bytes_per_s
from .places import Place, place
from .section import MB, Section, Told, middle, spread

STREAMS = 3
WAN = Shape(200, 25)


def shaped(told: Told, tls: list[str]) -> Section:
    """Turn about: iperf3, ours plain, ours with TLS."""
    size = int(told(200, 60) * MB)
    rates: dict[str, list[float]] = {"iperf3": [], "checksum": [], "checksum + TLS": []}
    with place(WAN) as where:
        kinds: dict[str, dict[str, Any]] = {"checksum": {}, "checksum + TLS": {"tls": tls}}
        for _ in range(told.times(3, 1)):
            _add(rates["iperf3"], where.iperf_bits_per_s(STREAMS, told(10, 5), "bbr"))
            for name, options in kinds.items():
                with where.pair(streams_far=STREAMS, **options) as pair:
                    pair.send(20 * MB)
                    rates[name].append(8 * size / pair.send(size))
    section = Section(
        f"One large transfer ({size // MB} MB) / iperf3, {STREAMS} streams, bbr", where.name,
        "Each run: iperf3 for its seconds, then a warm pair of processes, ours.", ("sender", "Mbit/s", "/ iperf3"),
    )  # fmt: skip
    _table(section, rates, 1e6, "iperf3")
    return section


def loopback(told: Told, tls: list[str]) -> Section:
    size = int(told(2000, 400) * MB)
    kinds: dict[str, dict[str, Any]] = {"checksum": {}, "checksum + TLS": {"tls": tls}}
    if installed():
        kinds["checksum + NIXL"] = {"nixl": True}
    names = ("bare sockets", *kinds)
    rates: dict[str, list[float]] = {"iperf3": [], **{name: [] for name in names}}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    with place(None) as where:
        for _ in range(told.times(3, 1)):
            _add(rates["iperf3"], where.iperf_bits_per_s(STREAMS, told(5, 2), "cubic"))
            rate, cpu_s = bare_bytes_per_s(size, STREAMS)
            rates["bare sockets"].append(8 * rate)
            cpu["bare sockets"].append(cpu_s * 1000 * MB / size)
            for name, options in kinds.items():
                rate, cpu_s = _ours(where, size, options)
                rates[name].append(8 * rate)
                cpu[name].append(cpu_s * 1000 * MB / size)
    section = Section(
        f"One large transfer ({size // MB} MB) over loopback, {STREAMS} streams, cubic", where.name,
        "CPU of both ends together, by getrusage; the payload is cold memory.",
        ("sender", "Gbit/s", "/ iperf3", "CPU-s/GB"),
    )  # fmt: skip
    _table(section, rates, 1e9, "iperf3", cpu)
    return section


def _ours(where: Place, size: int, options: dict[str, Any]) -> tuple[float, float]:
    with where.pair(streams_near=STREAMS, within=True, **options) as pair:
        pair.send(100 * MB)
        before = pair.cpu_s()
        seconds = pair.send(size)
        return size / seconds, pair.cpu_s() - before


def _add(found: list[float], value: float | None) -> None:
    if value is not None:
        found.append(value)


def _table(
    section: Section, rates: dict[str, list[float]], unit: float, base: str, cpu: dict[str, list[float]] | None = None
) -> None:
    for name, values in rates.items():
        if not values:
            continue
        ratio = f"{middle(values) / middle(rates[base]):.3f}" if rates[base] else "no iperf3"
        row = [name, spread([value / unit for value in values]), ratio]
        if cpu is not None:
            row.append(spread(cpu[name]) if name in cpu else "")
        section.rows.append(tuple(row))
    section.data = {"bits_per_s": rates, "cpu_s_per_gb": cpu or {}}
