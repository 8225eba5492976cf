"""The line's figures, as ratios in one run: `python -m bench.line` (`--quick`: under a minute). As root the WAN is emulated."""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from . import beside, bulk, loss, packed, study
from .pair import ROOT
from .section import Section, Told

Measure = Callable[[Told, list[str]], Section]

SECTIONS: dict[str, Measure] = {
    "bulk": bulk.shaped,
    "beside": beside.beside,
    "of-another": beside.of_another,
    "loss": loss.loss,
    "loopback": bulk.loopback,
    "model": study.modelled,
    "sockets": study.on_sockets,
    "packing": packed.ratios,
    "packed-line": packed.over_a_line,
}
QUICK = ("bulk", "beside", "model", "packing")


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.line", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"less of {', '.join(QUICK)}, and nothing else")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these alone")
    parser.add_argument("--into", type=Path, help="also write the report here (Markdown), and JSON and plots beside it")
    told = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was set up is taken down
    names = told.only or (QUICK if told.quick else list(SECTIONS))
    found: dict[str, Section] = {}
    print(_head(told.quick, names), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tls = _certificates(Path(folder))
        for name in names:
            began = time.monotonic()
            found[name] = SECTIONS[name](Told(told.quick), tls)
            print(f"{found[name].text()}\n({time.monotonic() - began:.0f} s)\n", flush=True)
    if told.into:
        report = "\n".join([_head(told.quick, names), *(section.text() for section in found.values())])
        told.into.write_text(report)
        data = {name: section.data for name, section in found.items()}
        told.into.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
        for file, plot in [plot for section in found.values() for plot in section.plots.items()]:
            (told.into.parent / file).write_text(plot + "\n")
    return 0


def _head(quick: bool, names: list[str] | tuple[str, ...]) -> str:
    load = os.getloadavg()[0]
    return "\n".join(
        [
            "# The line",
            "",
            f"`python -m bench.line{' --quick' if quick else ''}`, sections {', '.join(names)}.",
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, Linux {platform.release()},"
            f" Python {platform.python_version()}, load {load:.1f} at the start.",
            "Ratios are of values from one run, turn about; medians, with the least and the most in brackets.",
            "",
        ]
    )


def _certificates(folder: Path) -> list[str]:
    """Certificate, key and authority of both ends: for a measurement one will do."""
    certificate, key = folder / "line.pem", folder / "line.key"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=line"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made.split(), *files], check=True, capture_output=True, cwd=ROOT)
    return [str(certificate), str(key), str(certificate)]


if __name__ == "__main__":
    sys.exit(main())
