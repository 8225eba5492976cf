"""`make demo`: two sites on this machine, a slow line, a real model, an agent's conversation, and the proof of every token.

Nothing is forced: each request goes the way the router predicts to be quickest. Exit status 0 only if all that was to be shown
was shown.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from pdd.cli.deployment import Deployment
from pdd.cli.fleet import Fleet, Line
from pdd.cli.line import change
from pdd.cli.model import demo_model
from pdd.cli.run_directory import RunDirectory
from pdd.cli.serve import asked_to_end, start_shown, stop_shown
from pdd.core.errors import PddError
from pdd.core.sampling import Sampling
from pdd.runtime.settings import LocalSettings, read_settings

from . import timeline, verdict
from .alone import answers
from .play import Played, Stage
from .script import MAX_TOKENS, SYSTEM, TURNS, WARM_UPS

DTYPE = "float32"  # exact: ids may be compared to the bit
VALUE_BYTES = 4
FIRST_LINE = Line(40.0, 25.0)  # until the machine's pace is known
RELAYED_STEPS = 14  # the line is so slow that RLD writes about so many tokens before the first prompt has crossed ...
RELAYED_S = 0.7  # ... or for so long, whichever is more: a relay that saves less is not worth its price


def main() -> int:
    told = _arguments()
    console = Console(highlight=False, width=max(120, Console().width) if not sys.stdout.isatty() else None)
    try:
        with asked_to_end():
            return _demo(told, console)
    except PddError as error:
        console.print(f"[red]demo:[/red] {error}", soft_wrap=True)
    except KeyboardInterrupt:
        console.print("interrupted; everything was ended")
    return 1


def _demo(told: argparse.Namespace, console: Console) -> int:
    model = told.model or demo_model(read_settings(LocalSettings).cache_dir, console)
    with tempfile.TemporaryDirectory(prefix="pdd-demo-") as folder:
        run = RunDirectory(told.run_dir or Path(folder))
        fleet = Fleet(model_dir=model, dtype=DTYPE, router_port=0, line=FIRST_LINE)
        deployment = Deployment(fleet, run)
        try:
            start_shown(deployment, console)
            played = _play(deployment, told.rate_mbit, _bytes_per_token(model), console)
        finally:
            stop_shown(deployment, console)
    alone = _alone(model, played, console)
    held = verdict.checks(played, alone)
    verdict.show(played, held, _bytes_per_token(model), console)
    return 0 if all(check.held for check in held) else 1


def _play(deployment: Deployment, rate_mbit: float, bytes_per_token: int, console: Console) -> list[Played]:
    stage = Stage(deployment.router_url)
    with console.status("finding out how fast this machine is"):
        stage.warm_up(WARM_UPS[0])
        state = change(deployment.line_control, rate_mbit=rate_mbit or _slow_rate(stage, bytes_per_token))
        stage.warm_up(WARM_UPS[1])  # so that P has measured the line as it is now
    console.print(
        f"Two sites on this machine. At site a: prefill (P) and relay decode (RLD). At site b: main decode (MD).\n"
        f"The line between them carries {state['rate_mbit']:g} Mbit/s and takes {state['delay_ms']:g} ms each way. The model"
        f" is {stage.model}, in {DTYPE}: one token's KV has {bytes_per_token / 1e3:.1f} kB.",
        soft_wrap=True,
    )
    played = []
    for number, one in enumerate(stage.play(TURNS), start=1):
        timeline.show(one, number, len(TURNS), console)
        played.append(one)
    return played


def _slow_rate(stage: Stage, bytes_per_token: int) -> float:
    """Mbit/s. Slow compared with this machine's own pace, so that a quick and a slow machine show the same play."""
    pace = {worker["role"]: worker for worker in stage.status()["workers"]}
    tokens = len(stage.tokenize([{"role": "system", "content": SYSTEM}]))
    prefill_s = tokens / pace["prefill"]["prefill_tokens_per_s"]
    relayed_s = max(RELAYED_STEPS * pace["main_decode"]["step_s"], RELAYED_S)
    return round(float(tokens * bytes_per_token / (prefill_s + relayed_s) * 8e-6), 1)


def _alone(model: Path, played: list[Played], console: Console) -> list[list[int]]:
    end_ids = _end_ids(model)
    sampling = Sampling(max_tokens=MAX_TOKENS, stop_token_ids=end_ids)
    with console.status("the same prompts by one engine alone") as shown:

        def told(done: int) -> None:
            shown.update(f"the same prompts by one engine alone: {done} of {len(played)}")

        return answers(model, DTYPE, [one.prompt_ids for one in played], sampling, told)


def _end_ids(model: Path) -> tuple[int, ...]:
    ids = _config(model)["eos_token_id"]
    return tuple(ids) if isinstance(ids, list) else (ids,)


def _bytes_per_token(model: Path) -> int:
    config = _config(model)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * head_dim * VALUE_BYTES)


def _config(model: Path) -> dict[str, Any]:
    return dict(json.loads((model / "config.json").read_text()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("pdd demo", description=__doc__)
    parser.add_argument("--rate-mbit", type=float, default=0.0, help="the line's rate; default: slow for this machine")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder; default: the demo model, made once")
    parser.add_argument("--run-dir", type=Path, help="keep logs and records here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
