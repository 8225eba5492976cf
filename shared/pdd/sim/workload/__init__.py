"""What clients ask: sessions of turns in token ids, the same for the load generator and for the simulator. Same seed, same requests."""

from .load import Load
from .session import Session, Turn
from .traces import TraceError

__all__ = ["Load", "Session", "TraceError", "Turn"]
