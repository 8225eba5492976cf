"""The HTTP side over a whole deployment in virtual time: real requests, all five machines, scripted engines, one process.

Virtual time runs while somebody waits for an answer, a little in each turn of the loop.
"""

import asyncio
from dataclasses import dataclass

import httpx
from fastapi import FastAPI

from pdd.adapters.engine_scripted import Script, reference
from pdd.adapters.grammar import grammars_of
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.events import Event, RequestSubmitted
from pdd.core.roles.router import Router
from pdd.plan.house import House
from pdd.plan.house_parts import HouseSpec
from pdd.runtime.health import Health, Stage
from services.router.app import create_app
from services.router.bounds import Bounds
from services.router.open_requests import OpenRequests
from services.router.settings import EdgeSettings
from services.router.status import fleet_can, longest_context
from services.router.text import ModelText
from tests.contract.text_model import CONTEXT, END, PADDED

TURN_S = 0.02
MODEL = "tiny"


@dataclass
class HttpHouse:
    app: FastAPI
    house: House
    text: ModelText
    script: Script
    asked: list[RequestSubmitted]

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://house", timeout=60)

    async def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client() as client:
            return await client.post(path, json=body, headers=named)

    def alone(self, asked: RequestSubmitted) -> list[int]:
        """What one engine alone writes."""
        return reference(asked.ids, asked.sampling, len(asked.ids), self.script)


def make_http_house(text: ModelText, model_dir, *, mean_outputs: int = 0, **spec: object) -> HttpHouse:
    """Inside the loop that will serve it. `mean_outputs`: how long answers are by themselves, 0: they do not end."""
    script = Script(vocab=text.vocab_size - PADDED, end_token=END, mean_outputs=mean_outputs)
    house = House(HouseSpec(script=script, **spec))  # type: ignore[arg-type]
    house.run(1.2)  # the first beats
    node = house.processes["router"].node
    machine = node.machine
    assert isinstance(machine, Router) and node.ports
    node.ports.text = open_requests = OpenRequests()
    asked: list[RequestSubmitted] = []
    loop = asyncio.get_running_loop()
    turning = False

    def turn() -> None:
        nonlocal turning
        house.run(TURN_S)
        turning = not machine.idle
        if turning:
            loop.call_soon(turn)

    def submit(event: Event) -> None:
        nonlocal turning
        if isinstance(event, RequestSubmitted):
            asked.append(event)
        node.post(event)
        if not turning:
            turning = True
            loop.call_soon(turn)

    settings = EdgeSettings(model=MODEL, max_context=CONTEXT, report=True, test_hooks=True)
    app = create_app(
        open_requests,
        submit,
        settings,
        MemoryNotes(),
        text,
        Health("router", Stage.READY),
        lambda: b"",
        lambda: longest_context(machine, house.world.now()),
        Bounds(grammars_of(model_dir), lambda feature: fleet_can(machine, house.world.now(), feature)),
    )
    return HttpHouse(app, house, text, script, asked)
