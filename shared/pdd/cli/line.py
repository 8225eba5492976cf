"""The line's control port, as `pdd line` and the demo use it: JSON over HTTP, see infra/wan/state.py."""

from typing import Any

import httpx

from .deployment import DeploymentError
from .run_directory import RunDirectory

PATIENCE_S = 5.0


def address(run: RunDirectory) -> str:
    """host:port of the line that was started from here."""
    deployed = run.read()
    if deployed is None or not deployed.line_control:
        raise DeploymentError(f"no line runs from {run.path}; `pdd up` starts one")
    return deployed.line_control


def shape(control: str) -> dict[str, Any]:
    return _ask("GET", control, None)


def change(
    control: str,
    *,
    rate_mbit: float | None = None,
    delay_ms: float | None = None,
    stall: bool | None = None,
    cut: bool | None = None,
) -> dict[str, Any]:
    """What is None stays as it is. The line's state after the change."""
    asked = {"rate_mbit": rate_mbit, "delay_ms": delay_ms, "stall": stall, "cut": cut}
    given = {name: value for name, value in asked.items() if value is not None}
    return _ask("POST", control, given) if given else shape(control)


def described(state: dict[str, Any]) -> str:
    rate = f"{state['rate_mbit']:g} Mbit/s each way" if state["rate_mbit"] else "no limit of rate"
    troubles = [word for word, on in (("stalled", state["stall"]), ("cut", state["cut"])) if on]
    words = [rate, f"{state['delay_ms']:g} ms one way", *troubles]
    sent, back = state["bytes_from_a"] / 1e6, state["bytes_from_b"] / 1e6
    return f"{', '.join(words)}; {sent:.1f} MB went from a to b, {back:.1f} MB back"


def _ask(method: str, control: str, body: dict[str, Any] | None) -> dict[str, Any]:
    try:
        answer = httpx.request(method, f"http://{control}/", json=body, timeout=PATIENCE_S, trust_env=False)
    except httpx.HTTPError as error:
        raise DeploymentError(f"the line does not answer on {control}: {error}") from error
    if answer.is_error:
        raise DeploymentError(f"the line refuses: {answer.text.strip()}")
    return dict(answer.json())
