"""What clients saw, whoever served them: records of requests, their summary, and a page with plots. Live and simulated runs share it."""

from .records import Gaps, Record, Run
from .summary import summarize

__all__ = ["Gaps", "Record", "Run", "summarize"]
