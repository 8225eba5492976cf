"""Metrics under vLLM's and OpenTelemetry's names: another reading of ours, never another count."""

from collections.abc import Callable

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from pdd.adapters.notes_otel import OtelNotes
from pdd.core.aliases import ALIASES
from pdd.core.effects import Count, Gauge, Observe
from pdd.core.names import METRICS, Kind


class StoppedClock:
    def now(self) -> float:
        return 1000.0

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        raise AssertionError("notes never wait")


@pytest.fixture
def notes() -> OtelNotes:
    return OtelNotes("router", "router-1", None, StoppedClock(), model="tiny")


def families(notes: OtelNotes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(notes.render().decode())}


def value(notes: OtelNotes, name: str, **labels: str) -> float:
    [found] = [
        sample.value
        for family in families(notes).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return found


def test_every_alias_reads_a_metric_that_is_there_and_has_its_labels() -> None:
    for name, alias in ALIASES.items():
        metric = METRICS[alias.source]
        assert {*alias.renamed, *alias.only} <= set(metric.labels)
        assert name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert not alias.free_of or METRICS[alias.free_of].kind is Kind.GAUGE


def test_a_histogram_is_the_same_under_each_of_its_names(notes: OtelNotes) -> None:
    for seconds in (0.002, 0.3, 7.0):
        notes.note(Observe("pdd_ttft_seconds", seconds))
    ours = {
        (sample.name.rpartition("_")[2], sample.labels.get("le")): sample.value
        for sample in families(notes)["pdd_ttft_seconds"].samples
    }
    for name in ("vllm:time_to_first_token_seconds", "gen_ai_server_time_to_first_token_seconds"):
        family = families(notes)[name]
        assert family.type == "histogram"
        theirs = {(sample.name.rpartition("_")[2], sample.labels.get("le")): sample.value for sample in family.samples}
        assert theirs.items() <= ours.items() and theirs["bucket", "0.5"] == 2 and theirs["count", None] == 3
    assert value(notes, "vllm:time_to_first_token_seconds_count", model_name="tiny") == 3
    model = {"gen_ai_request_model": "tiny", "gen_ai_operation_name": "chat"}
    assert value(notes, "gen_ai_server_time_to_first_token_seconds_count", **model) == 3


def test_labels_are_renamed_chosen_or_summed_up(notes: OtelNotes) -> None:
    for outcome, count in (("stop", 2), ("length", 3), ("gone", 5)):
        notes.note(Count("pdd_requests_total", (("outcome", outcome),), count))
    for role, count in (("prefill", 1), ("relay_decode", 20)):
        notes.note(Count("pdd_tokens_written_total", (("role", role),), count))
    successes = families(notes)["vllm:request_success"].samples
    assert {sample.labels["finished_reason"]: sample.value for sample in successes} == {"stop": 2, "length": 3}
    assert value(notes, "vllm:generation_tokens_total") == 21


def test_a_share_in_use_is_told_from_what_is_free(notes: OtelNotes) -> None:
    notes.note(Gauge("pdd_pages_total", 200))
    notes.note(Gauge("pdd_pages_free", 150))
    assert value(notes, "vllm:kv_cache_usage_perc") == pytest.approx(0.25)


def test_what_a_process_never_noted_has_no_alias(notes: OtelNotes) -> None:
    assert not [name for name in families(notes) if name.startswith(("vllm:", "gen_ai"))]
    notes.note(Gauge("pdd_inflight_requests", 4))
    assert [name for name in families(notes) if name.startswith(("vllm:", "gen_ai"))] == ["vllm:num_requests_running"]
