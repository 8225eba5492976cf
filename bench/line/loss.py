"""What loss takes from a line: packets dropped at random, one by one, on their way from a to b."""

from infra.wan.namespaces import Shape, missing

from .places import place
from .section import MB, Section, Told, middle, spread

RATE_MBIT, DELAY_MS = 200, 25
LOSSES = (0.0, 0.0001, 0.001)
KINDS = {"bbr (ours)": {}, "cubic": {"congestion_far": "cubic"}}
STREAMS = 3


def loss(told: Told, tls: list[str]) -> Section:
    section = Section(
        f"Loss on a line of {RATE_MBIT} Mbit/s, {2 * DELAY_MS} ms", "", f"One large transfer, {STREAMS} streams, TLS.",
        ("congestion control", "no loss, Mbit/s", *(f"{share:.2%}, share kept" for share in LOSSES[1:])),
    )  # fmt: skip
    if reason := missing():
        section.place, section.said = "nowhere", f"Not measured: {reason}."
        return section
    size = int(told(100, 40) * MB)
    rates: dict[str, dict[float, list[float]]] = {name: {share: [] for share in LOSSES} for name in KINDS}
    for share in LOSSES:
        with place(Shape(RATE_MBIT, DELAY_MS, loss=share)) as where:
            section.place = where.name.split(",")[0] + " (network namespaces)"
            for _ in range(told.times(2, 1)):
                for name, options in KINDS.items():
                    with where.pair(streams_far=STREAMS, tls=tls, **options) as pair:
                        pair.send(20 * MB)
                        rates[name][share].append(8 * size / pair.send(size) / 1e6)
    for name, found in rates.items():
        whole = middle(found[0.0])
        kept = [spread([rate / whole for rate in found[share]]) for share in LOSSES[1:]]
        section.rows.append((name, spread(found[0.0], 0), *kept))
    section.data = {name: {str(share): values for share, values in found.items()} for name, found in rates.items()}
    return section
