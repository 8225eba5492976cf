"""A step's cost on a chip: the roofline of `chips` and `llms`, times what is reached of it."""

from dataclasses import dataclass

from .chips import Chip
from .cost import EngineCost
from .llms import Llm


@dataclass(frozen=True, slots=True)
class Reach:
    """Shares of the peaks that real engines reach, and what a step costs whatever it does.

    The defaults are in the range of published kernels (FlashAttention-3: 0.5-0.75 of the 16-bit peak on H100; large GEMMs 0.6-0.8; decode
    attention 0.7-0.85 of the bandwidth), with the rest of an engine taken off. Calibrate them where something was measured.
    """

    compute: float = 0.5
    attention: float = 0.4
    memory: float = 0.7
    step_s: float = 0.008
    import_bytes_per_s: float = 20e9  # of one card, from staging memory into pages


def engine_cost(chip: Chip, llm: Llm, cards: int, reach: Reach) -> EngineCost:
    """For one engine over `cards` cards, work and weights split evenly, communication inside `reach`."""
    flops = cards * reach.compute * (chip.flops_8bit if llm.bits == 8 else chip.flops_16bit)
    attention_flops = cards * reach.attention * chip.flops_16bit
    memory = cards * reach.memory * chip.memory_bytes_per_s
    return EngineCost(
        step_s=reach.step_s,
        prefill_tokens_per_s=1 / (2 * llm.active_params / flops + llm.token_flops / attention_flops),
        attention_s_per_pair=llm.pair_flops / attention_flops,
        decode_s=llm.read_bytes_fixed / memory,
        kv_read_s_per_token=llm.read_bytes / memory,
        import_bytes_per_s=cards * reach.import_bytes_per_s,
        weights_s=llm.weight_bytes / memory,
        experts_s=llm.expert_bytes / memory,
        expert_share=llm.experts_per_token / llm.experts if llm.expert_bytes else 0.0,
    )


def cache_tokens(chip: Chip, llm: Llm, cards: int, kept_free: float = 0.1) -> int:
    """Tokens of KV that fit beside the weights."""
    return max(0, int((cards * chip.memory_bytes * (1 - kept_free) - llm.all_weight_bytes) / llm.kv_bytes))
