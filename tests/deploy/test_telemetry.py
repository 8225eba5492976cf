"""Spans as collectors see them, and nothing declared that nobody emits. What is emitted and not declared raises by itself."""

import asyncio
from pathlib import Path

from pdd.adapters.notes_otel import OtelNotes
from pdd.core import names
from pdd.core.effects import Span
from pdd.runtime.driver import LoopClock

ROOT = Path(__file__).resolve().parents[2]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REQUEST = Span(
    "request",
    TRACE,
    1.0,
    2.0,
    (("gen_ai.usage.output_tokens", 7), ("gen_ai.response.finish_reasons", "length")),
    root=True,
)


def sources() -> str:
    files = [*(ROOT / "shared").rglob("*.py"), *(ROOT / "services").rglob("*.py")]
    return "\n".join(file.read_text() for file in files if file.name not in ("names.py", "aliases.py"))


def test_every_declared_metric_and_span_is_emitted_somewhere() -> None:
    code = sources()
    assert [name for name in (*names.METRICS, *names.SPANS) if f'"{name}"' not in code] == []


def test_a_request_is_what_the_genai_conventions_call_it() -> None:
    async def noted() -> None:
        notes = OtelNotes("pdd-router", "r", None, LoopClock(asyncio.get_running_loop()), model="smollm2")
        notes.note(REQUEST)
        notes.note(Span("relay", TRACE, 1.0, 1.5))
        root, relay = notes.recent(TRACE)
        assert (root.name, relay.name) == ("chat smollm2", "relay")
        assert dict(root.attributes or {}) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "pdd",
            "gen_ai.request.model": "smollm2",
            "gen_ai.response.model": "smollm2",
            "gen_ai.response.finish_reasons": ("length",),
            "gen_ai.usage.output_tokens": 7,
        }
        assert relay.parent is not None and root.context is not None
        assert relay.parent.span_id == root.context.span_id
        notes.close()

    asyncio.run(noted())
