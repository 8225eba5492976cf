"""What a deployment leaves on disk while it runs: one file that says what was started, and a log for each process."""

from pathlib import Path

import msgspec

from .processes import ProcessRecord, alive


class Deployed(msgspec.Struct, frozen=True):
    """`processes` in the order they were started. Addresses are host:port."""

    processes: tuple[ProcessRecord, ...] = ()
    router: str = ""
    line_control: str = ""
    model: str = ""


class RunDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._file = self.path / "deployment.json"

    def prepare(self) -> None:
        """Empty logs for a new deployment."""
        self.logs.mkdir(parents=True, exist_ok=True)
        self.data.mkdir(parents=True, exist_ok=True)
        for log in self.logs.glob("*.log"):
            log.unlink()

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def data(self) -> Path:
        """Configuration and scratch files of brokers and Redis."""
        return self.path / "data"

    def read(self) -> Deployed | None:
        """None when nothing was started from here, or it was ended."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Deployed)
        except FileNotFoundError:
            return None

    def write(self, deployed: Deployed) -> None:
        """Whole or not at all."""
        fresh = self._file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(deployed)))
        fresh.replace(self._file)

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)

    def running(self) -> list[ProcessRecord]:
        deployed = self.read()
        return [record for record in deployed.processes if alive(record)] if deployed else []
