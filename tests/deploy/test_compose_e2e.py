"""Both sites in containers, from the unchanged compose file, over a slow line: a conversation, its trace, and faults in its midst.

The tests share one deployment and leave it whole, but for the last two: one stops it, one starts it again with a real model.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from infra.grafana.ask import ask as ask_dashboard
from infra.grafana.picture import svg
from pdd.core.names import SPANS
from tests.deploy.conversation import Answer, ask, client_of, model_of
from tests.deploy.sites import WORKERS, Sites

# Images are made before the first of them, within bounds of its own (conftest.py).
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150, func_only=True)]

LONG = "The line between the sites is slow, and this prompt takes its time to cross it. " * 20
MANY = 150  # tokens: some seconds at the scripted engine's pace
EARLY = 20
MOMENT_S = 1.5
CLIENTS = 3
LOOKED_S = 60.0
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "dashboard.svg"
MAY_NOT_HAPPEN = {  # what counts only what no test here does
    "Transfers cut",
    "Refused",
    "Workers of another model",
    "Warm-ups",
    "Dropped at the bus",
    "Dropped at the KV link and the router",
    "Transfers that broke",
}


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))


def across(sites: Sites, prompt: str, *, at: dict[int, Callable[[], object]] | None = None) -> Answer:
    return ask(sites.api, prompt, tokens=MANY, at=at)


def test_a_conversation_with_the_openai_client_finds_its_earlier_turns_in_the_cache(sites: Sites) -> None:
    messages: list[Any] = [{"role": "user", "content": LONG}]
    cached = []
    with client_of(sites.api) as client:
        model = model_of(client)
        for question in ("And what then?", "And in the end?"):
            answer = client.chat.completions.create(
                model=model, messages=messages, max_tokens=20, temperature=0, seed=7
            )
            assert answer.choices[0].finish_reason == "length"
            assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
            cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
            messages += [
                {"role": "assistant", "content": answer.choices[0].message.content},
                {"role": "user", "content": question},
            ]
    assert cached[1] > cached[0], "the second turn holds the first"


def test_the_main_worker_takes_over_from_the_relay_while_the_client_reads(sites: Sites) -> None:
    """The prompt is new, so its KV must cross the line, and the relay speaks meanwhile."""
    handed = ask(sites.api, f"hand-over {LONG}", tokens=MANY)
    assert handed.spoke == ["prefill", "relay_decode", "main_decode"]
    assert handed.report["fence"] > 1
    main = handed.report["workers"]["main_decode"]
    assert sites.workers()[main]["kv_address"].startswith("tls://")
    assert {one["way"] for one in handed.report["transfers"]} == {"near", "wan"}
    alone = ask(sites.api, f"hand-over {LONG}", tokens=MANY, route="P-MD")
    assert alone.spoke == ["prefill", "main_decode"]
    assert handed.text == alone.text


def test_one_trace_tells_the_request_across_both_sites(sites: Sites) -> None:
    trace, asking = secrets.token_hex(16), secrets.token_hex(8)
    told = {"traceparent": f"00-{trace}-{asking}-01"}
    ask(sites.api, f"trace {LONG}", tokens=MANY, headers=told)
    request = "chat smollm2-135m-instruct"  # as OpenTelemetry's GenAI conventions name it
    expected = {
        request,
        "route",
        "prefill",
        "prefill.chunk",
        "kv.transfer",
        "relay",
        "handover",
        "extend",
        "main",
        "queue",
    }

    def spans() -> list[dict[str, Any]]:
        found = sites.get("JAEGER_PORT", f"/api/v3/traces/{trace}")
        entries = found.get("result", {}).get("resourceSpans", [])
        return entries if expected <= {_span(entry)["name"] for entry in entries} else []

    entries = sites.wait(spans, f"the spans {sorted(expected)} of trace {trace}")
    assert {_span(entry)["name"] for entry in entries} - {request} <= set(SPANS), "what docs/operations.md declares"
    began: dict[str, int] = {}
    for span in map(_span, entries):
        began[span["name"]] = min(int(span["startTimeUnixNano"]), began.get(span["name"], 1 << 63))
    story = [request, "prefill", "relay", "handover", "main"]
    assert sorted(story, key=began.__getitem__) == story
    ways = {
        _attributes(span)["pdd.way"]["stringValue"] for span in map(_span, entries) if span["name"] == "kv.transfer"
    }
    assert ways == {"near", "wan"}
    services = {_service(entry) for entry in entries}
    assert services == {"pdd-router", "pdd-prefill", "pdd-relay_decode", "pdd-main_decode"}
    root = next(span for entry in entries if (span := _span(entry))["name"] == request)
    assert root["parentSpanId"] == asking, "the client's own span"
    attributes = _attributes(root)
    assert attributes["gen_ai.provider.name"] == {"stringValue": "pdd"}
    assert attributes["gen_ai.usage.output_tokens"] == {"intValue": str(MANY)}
    children = [span for span in map(_span, entries) if span["spanId"] != root["spanId"]]
    assert {span["parentSpanId"] for span in children} == {root["spanId"]}


def test_a_line_cut_and_joined_mid_answer_costs_only_time(sites: Sites) -> None:
    calm = across(sites, "a short cut")
    with ExitStack() as fault:

        def cut_for_a_moment() -> None:
            cut = ExitStack()
            cut.enter_context(sites.cut_line())
            joining = threading.Timer(MOMENT_S, cut.close)
            fault.callback(joining.join)
            joining.start()

        cut = across(sites, "a short cut", at={EARLY: cut_for_a_moment})
    assert (cut.text, cut.finish) == (calm.text, calm.finish)
    sites.wait(lambda: sites.hears(*WORKERS), "every worker to be heard again")


def test_an_answer_outlives_a_line_that_stays_cut(sites: Sites) -> None:
    calm = across(sites, "a long cut")
    with ExitStack() as fault:
        cut = across(sites, "a long cut", at={EARLY: lambda: fault.enter_context(sites.cut_line())})
        assert (cut.text, cut.finish) == (calm.text, calm.finish)
        assert cut.report["epochs"] > 1
        assert cut.spoke[-1] == "relay_decode"
    sites.wait(lambda: sites.hears(*WORKERS), "every worker to be heard again")
    assert across(sites, "after the cut").spoke[-1] == "main_decode"


def test_an_answer_outlives_its_main_worker_which_comes_back_by_itself(sites: Sites) -> None:
    calm = across(sites, "a crash")
    crashed = across(sites, "a crash", at={EARLY: lambda: sites.crash("main")})
    assert (crashed.text, crashed.finish) == (calm.text, calm.finish)
    assert crashed.report["epochs"] > 1
    main = sites.containers("main")[0]
    sites.wait(lambda: sites.state(main)["Health"]["Status"] == "healthy", "the container to be restarted")
    sites.wait(lambda: sites.hears(*WORKERS), "the router to hear the new life")
    assert across(sites, "after the crash").spoke[-1] == "main_decode"


def test_redis_wants_its_password_and_is_out_of_site_b_s_reach(sites: Sites) -> None:
    redis = sites.engine.docker(
        *("inspect", "--format", '{{(index .NetworkSettings.Networks "pdd_site-a").IPAddress}}'),
        sites.containers("redis")[0],
    ).strip()
    for host in ("redis", redis):
        look = (
            "import socket,sys\n"
            f"try: socket.create_connection(({host!r}, 6379), timeout=2)\n"
            "except OSError: sys.exit(0)\n"
            "sys.exit('reached')"
        )
        sites.compose("exec", "-T", "main", "python", "-c", look)
    assert "NOAUTH" in sites.compose("exec", "-T", "redis", "redis-cli", "dbsize")


def test_prometheus_of_each_site_hears_its_services_and_takes_our_alerts(sites: Sites) -> None:
    expected = {"PROMETHEUS_PORT": {"router", "index", "prefill", "relay"}, "PROMETHEUS_B_PORT": {"main"}}
    for port, services in expected.items():

        def scraped(port: str = port) -> set[str]:
            found = sites.get(port, "/api/v1/query", query="up == 1")["data"]["result"]
            return {one["metric"]["service"] for one in found}

        sites.wait(lambda services=services, scraped=scraped: scraped() == services, f"scrapes of {services}")
        rules = sites.get(port, "/api/v1/rules")["data"]["groups"]
        assert rules and all(rule["health"] != "err" for group in rules for rule in group["rules"])


def test_the_dashboard_s_queries_are_answered_and_its_panels_have_data(sites: Sites, rewrite: bool) -> None:
    """After the faults above, so that what counts them has been counted. `--rewrite`: a longer load, and docs/dashboard.svg of it."""
    began, load_s = time.time(), 100.0 if rewrite else 12.0
    with ThreadPoolExecutor(CLIENTS) as clients:
        talks = [clients.submit(talk, sites, client, load_s) for client in range(CLIENTS)]
        wait(talks, timeout=load_s / 2)
        with sites.cut_line():
            wait(talks, timeout=MOMENT_S)
        assert sum(talk.result() for talk in talks) > CLIENTS
    now = time.time()
    answered = ask_dashboard(sites.prometheus, began - LOOKED_S, now)
    assert {panel.title for panel in answered if panel.unit and not panel.series} <= MAY_NOT_HAPPEN
    if rewrite:
        told = "The dashboard's queries, answered while three clients talk and the line is cut; by infra/grafana/picture.py, not Grafana."
        PICTURE.write_text(svg(ask_dashboard(sites.prometheus, began, now), began, now, told))


def talk(sites: Sites, client: int, seconds: float) -> int:
    """One conversation after another. Returns how many answers came."""
    until, answers = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        ask(sites.api, f"client {client}, question {answers} {LONG}", tokens=60)
        answers += 1
    return answers


@pytest.mark.parametrize("service", ["router", "main"])
def test_the_doctor_finds_nothing_wrong_at_either_site(sites: Sites, service: str) -> None:
    found = {one["what"]: one for one in json.loads(sites.compose("exec", "-T", service, "pdd", "doctor", "--json"))}
    assert {one["state"] for one in found.values()} <= {"ok", "skip"}, found
    looked_at = {"certificates", "broker", "workers", "model", "service", "traces", "clock"}
    looked_at |= {"redis", "line"} if service == "router" else set()
    assert {what for what in looked_at if found[what]["state"] == "ok"} == looked_at


def test_the_doctor_at_prefill_dials_the_port_that_takes_kv(sites: Sites) -> None:
    found = {one["what"]: one for one in json.loads(sites.compose("exec", "-T", "prefill", "pdd", "doctor", "--json"))}
    assert found["kv"]["state"] == "ok" and "main" in found["kv"]["found"]


def test_a_drained_worker_gets_nothing_new_until_it_is_restarted(sites: Sites) -> None:
    told = json.loads(sites.compose("exec", "-T", "relay", "pdd", "drain", "--json"))
    status = ("exec", "-T", "router", "pdd", "status", "--router", "127.0.0.1:8000", "--json")
    assert told["status"] == "drained"
    relay = next(name for name, worker in sites.workers().items() if worker["role"] == "relay_decode")
    sites.wait(lambda: sites.workers()[relay]["draining"], "the router to hear of the drain")
    assert relay in [worker["name"] for worker in json.loads(sites.compose(*status))["workers"] if worker["draining"]]
    assert across(sites, f"without this relay {LONG}").report["workers"].get("relay_decode") != relay
    sites.compose("restart", "relay")
    sites.wait(lambda: not sites.workers().get(relay, told | {"draining": True})["draining"], "the relay's next life")


def test_prefill_scales_to_three_workers_with_names_of_their_own(sites: Sites) -> None:
    sites.up("--scale", "prefill=3", "--no-recreate")
    sites.wait(lambda: sites.hears("prefill", "prefill", *WORKERS), "the router to hear all three")
    sites.up("--scale", "prefill=1", "--no-recreate")


def test_compose_stop_lets_answers_end_and_every_container_exits_with_0(sites: Sites) -> None:
    calm = across(sites, "a stop")
    stopping = threading.Thread(target=lambda: sites.compose("stop", timeout_s=90))
    stopped = across(sites, "a stop", at={EARLY: stopping.start})
    stopping.join(90)
    assert (stopped.text, stopped.finish) == (calm.text, calm.finish)
    codes = {}
    for service in ("router", "index", "prefill", "relay", "main"):
        for container in sites.containers(service):
            codes[service] = sites.state(container)["ExitCode"]
    assert set(codes.values()) == {0}, codes


def test_a_real_model_writes_the_same_with_and_without_a_hand_over(sites: Sites) -> None:
    sites.tell(ENGINE="torch", DTYPE="float32", PAGES="512")
    sites.up()
    sites.wait(lambda: sites.hears(*WORKERS), "the router to hear every worker")
    prompt = f"Name three rivers of Europe. {LONG[:400]}"
    with sites.shaped_line():
        handed = ask(sites.api, prompt, tokens=40, headers={"x-pdd-handover-after": "12"})
    alone = ask(sites.api, prompt, tokens=40, route="P-MD")
    assert handed.spoke == ["prefill", "relay_decode", "main_decode"]
    assert handed.report["fence"] >= 12
    assert alone.spoke == ["prefill", "main_decode"]
    assert handed.text == alone.text


def _span(entry: dict[str, Any]) -> dict[str, Any]:
    return dict(entry["scopeSpans"][0]["spans"][0])


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: one["value"] for one in span["attributes"]}


def _service(entry: dict[str, Any]) -> str:
    attributes = entry["resource"]["attributes"]
    return next(str(one["value"]["stringValue"]) for one in attributes if one["key"] == "service.name")
