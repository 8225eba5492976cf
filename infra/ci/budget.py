"""Bounded steps of a bounded whole: nothing waits longer than a step may, or than what is left; and nothing outlives its bound."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

KINDLY_S = 10.0


class Unavailable(Exception):
    """Both sites cannot be brought up here; the message says why."""


class Budget:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds

    def left(self, most: float = float("inf")) -> float:
        """Seconds that a step may take. Raises Unavailable when the whole is used up."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise Unavailable(f"preparing took more than {self._seconds:.0f} s")
        return min(most, left)

    def run(
        self, command: Sequence[str], most: float, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> str:
        """Its standard output. Raises Unavailable. Its whole process group ends with it, or with us."""
        limit = self.left(most)
        try:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                cwd=cwd,
                env=env,
                text=True,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except FileNotFoundError as error:
            raise Unavailable(f"needs {error.filename}") from error
        try:
            said, complained = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{command[0]} took more than {limit:.0f} s") from error
        finally:
            _end(process)
        if process.returncode:
            raise Unavailable(f"{command[0]} failed: {complained.strip()[-500:]}")
        return said


def _end(process: "subprocess.Popen[str]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.communicate(timeout=KINDLY_S)
        except subprocess.TimeoutExpired:
            continue
