"""Names that other servers and conventions have for metrics of ours: vLLM's, so that its dashboards work, and OpenTelemetry's GenAI ones.

Nothing is counted twice: an alias is another reading of a metric of core/names.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Alias:
    """`renamed`: labels under another name, the others are summed up. `only`: of these values. `free_of`: 1 - source / this one."""

    source: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    free_of: str = ""


ALIASES: dict[str, Alias] = {
    "vllm:num_requests_running": Alias("pdd_inflight_requests"),
    "vllm:request_success_total": Alias(
        "pdd_requests_total", {"outcome": "finished_reason"}, {"outcome": ("stop", "length")}
    ),
    "vllm:prompt_tokens_total": Alias("pdd_prompt_tokens_total"),
    "vllm:generation_tokens_total": Alias("pdd_tokens_written_total"),
    "vllm:time_to_first_token_seconds": Alias("pdd_ttft_seconds"),
    "vllm:inter_token_latency_seconds": Alias("pdd_itl_seconds"),
    "vllm:e2e_request_latency_seconds": Alias("pdd_e2e_seconds"),
    "vllm:kv_cache_usage_perc": Alias("pdd_pages_free", free_of="pdd_pages_total"),
    "gen_ai_server_request_duration_seconds": Alias("pdd_e2e_seconds"),
    "gen_ai_server_time_to_first_token_seconds": Alias("pdd_ttft_seconds"),
    "gen_ai_server_time_per_output_token_seconds": Alias("pdd_itl_seconds"),
}

# What those names carry beside our labels: the model's name, and what is asked of it.
VLLM_MODEL = "model_name"
GEN_AI_MODEL = "gen_ai_request_model"
GEN_AI_OPERATION = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "pdd"}


def constant_labels(alias: str, model: str) -> dict[str, str]:
    if alias.startswith("vllm:"):
        return {VLLM_MODEL: model}
    return GEN_AI_OPERATION | {GEN_AI_MODEL: model}
