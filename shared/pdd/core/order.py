"""Whose turn it is on a line: the shortest first, what has waited long sooner, and what nobody waits for last.

Shortest-remaining-first has the least mean wait, and its long transfers starve; every second of waiting counts as AGEING seconds
of the line less to send. Measured in the queue model of bench/line.
"""

AGEING = 0.2


def turn(remaining_bytes: int, waited_s: float, bytes_per_s: float, warm_up: bool) -> tuple[bool, float]:
    """Smaller goes first. `bytes_per_s`: the line's measured rate; 0: not known."""
    return warm_up, remaining_bytes / (bytes_per_s or 1e6) - AGEING * waited_s
