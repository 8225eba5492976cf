"""What the control port of a line says and takes, as JSON."""

import msgspec

MBIT = 125_000  # bytes
DELAY_MAX_MS = 10_000


class Map(msgspec.Struct, frozen=True):
    """One listener. `opened_from`: the site whose connections it takes, "a" or "b"."""

    listen: str
    target: str
    opened_from: str
    bytes_from_a: int = 0
    bytes_from_b: int = 0


class LineState(msgspec.Struct, frozen=True):
    """`rate_mbit` each way, shared by all connections of that direction; 0: no limit. `delay_ms` one way."""

    rate_mbit: float
    delay_ms: float
    stall: bool = False
    cut: bool = False
    bytes_from_a: int = 0
    bytes_from_b: int = 0
    connections: int = 0
    maps: tuple[Map, ...] = ()


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is None stays as it is. `stall` holds everything, `cut` resets connections and refuses new ones."""

    rate_mbit: float | None = None
    delay_ms: float | None = None
    stall: bool | None = None
    cut: bool | None = None

    def __post_init__(self) -> None:
        if self.rate_mbit is not None and not 0 <= self.rate_mbit <= 1e6:
            raise ValueError(f"rate_mbit is {self.rate_mbit}: 0 (no limit) to 1000000")
        if self.delay_ms is not None and not 0 <= self.delay_ms <= DELAY_MAX_MS:
            raise ValueError(f"delay_ms is {self.delay_ms}: 0 to {DELAY_MAX_MS}")
