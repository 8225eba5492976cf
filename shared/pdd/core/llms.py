"""Models as data: what a token costs to compute, to read and to send. Sources are the models' own config.json and reports."""

from dataclasses import dataclass

GB = 1e9
KIB = 1024


@dataclass(frozen=True, slots=True)
class Llm:
    """Per token and whole model, all layers together.

    Attention is split in what grows with the context (`pair_flops`: for each earlier token attended to) and what does not
    (`token_flops`: top-k or sliding windows, beyond the linear layers). `read_bytes_per_token` is what a decode reads for each token
    of context, `read_bytes_fixed` what it reads however long that is. `kv_bytes` crosses the line for each token, `state_bytes`
    once for each hand-over.
    """

    name: str
    active_params: float
    weight_bytes: float  # read by every step, routed experts excluded
    expert_bytes: float  # all routed experts
    experts: int
    experts_per_token: int
    kv_bytes: int
    pair_flops: float
    token_flops: float = 0.0
    read_bytes_per_token: float = 0.0  # 0: kv_bytes
    read_bytes_fixed: float = 0.0
    state_bytes: int = 0
    bits: int = 16  # of the arithmetic: 8 or 16
    source: str = ""

    @property
    def all_weight_bytes(self) -> float:
        return self.weight_bytes + self.expert_bytes

    @property
    def read_bytes(self) -> float:
        return self.read_bytes_per_token or self.kv_bytes


def _pairs(layers: int, heads: int, query_dim: int, value_dim: int) -> float:
    """Multiply and add, for scores and for values."""
    return 2.0 * layers * heads * (query_dim + value_dim)


LLMS = {
    llm.name: llm
    for llm in (
        # 61 layers, d 7168, 128 heads of 512 over one KV head; 30 CSA layers keep one entry of 4 tokens and attend to 1,024 of them,
        # 31 HCA layers one of 128 and attend to all; both see the last 128 tokens. An indexer of 64 heads x 128 scores CSA's entries.
        # Experts: 384, 6 a token, 3 x 7168 x 3072 each, in fp4 with scales; the rest in fp8.
        Llm(
            "deepseek-v4-pro",
            active_params=49e9,
            weight_bytes=25 * GB,
            expert_bytes=61 * 384 * 3 * 7168 * 3072 * 0.53,
            experts=384,
            experts_per_token=6,
            kv_bytes=int(4.4 * KIB),
            pair_flops=_pairs(31, 128, 512, 512) / 128 + 2.0 * 30 * 64 * 128 / 4,
            token_flops=_pairs(30, 128, 512, 512) * (1024 + 128) + _pairs(31, 128, 512, 512) * 128,
            read_bytes_per_token=31 * 576 / 128 + 30 * 68 / 4,
            read_bytes_fixed=30 * (1024 + 128) * 576 + 31 * 128 * 576,
            bits=8,
            source="config.json of deepseek-ai/DeepSeek-V4-Pro; 1.6T/49B; 4.4 KiB a token as published for fp8 KV (arXiv 2609.13161)",
        ),
        # 61 layers, MLA: latent 512 + rotary 64, bf16 cache; 128 heads of 192 (scores) and 128 (values); 58 MoE layers x 256 experts.
        Llm(
            "deepseek-v3",
            active_params=37e9,
            weight_bytes=17 * GB,
            expert_bytes=58 * 256 * 3 * 7168 * 2048 * 1.0,
            experts=256,
            experts_per_token=8,
            kv_bytes=61 * (512 + 64) * 2,
            pair_flops=_pairs(61, 128, 192, 128),
            bits=8,
            source="config.json of deepseek-ai/DeepSeek-V3; arXiv 2412.19437; weights fp8, KV bf16",
        ),
        Llm(
            "qwen3-32b",
            active_params=32.8e9,
            weight_bytes=65.6 * GB,
            expert_bytes=0.0,
            experts=1,
            experts_per_token=1,
            kv_bytes=64 * 2 * 8 * 128 * 2,
            pair_flops=_pairs(64, 64, 128, 128),
            source="config.json of Qwen/Qwen3-32B, bf16",
        ),
        Llm(
            "qwen3-235b",
            active_params=22e9,
            weight_bytes=16 * GB,
            expert_bytes=94 * 128 * 3 * 4096 * 1536 * 2.0,
            experts=128,
            experts_per_token=8,
            kv_bytes=94 * 2 * 4 * 128 * 2,
            pair_flops=_pairs(94, 64, 128, 128),
            source="config.json of Qwen/Qwen3-235B-A22B, bf16",
        ),
        # 48 layers, every fourth full attention (16 heads of 256, 2 KV heads); the others keep 32 x 128 x 128 numbers in float32.
        Llm(
            "qwen3-next-80b",
            active_params=3e9,
            weight_bytes=5.4 * GB,
            expert_bytes=48 * 512 * 3 * 2048 * 512 * 2.0,
            experts=512,
            experts_per_token=10,
            kv_bytes=12 * 2 * 2 * 256 * 2,
            pair_flops=_pairs(12, 16, 256, 256),
            token_flops=36 * 32 * 128 * 128 * 6.0,
            read_bytes_fixed=2 * 36 * 32 * 128 * 128 * 4.0,
            state_bytes=36 * 32 * 128 * 128 * 4,
            source="config.json of Qwen/Qwen3-Next-80B-A3B-Instruct, bf16; recurrent state float32",
        ),
        # What a laptop really runs: the demo model of this repository, and the tiny one of its tests.
        Llm(
            "tiny",
            active_params=1.3e6,
            weight_bytes=2.6e6,
            expert_bytes=0.0,
            experts=1,
            experts_per_token=1,
            kv_bytes=4 * 2 * 2 * 32 * 2,
            pair_flops=_pairs(4, 4, 32, 32),
            source="tests/models.py",
        ),
        Llm(
            "smollm2-135m",
            active_params=0.135e9,
            weight_bytes=0.27 * GB,
            expert_bytes=0.0,
            experts=1,
            experts_per_token=1,
            kv_bytes=30 * 2 * 3 * 64 * 2,
            pair_flops=_pairs(30, 9, 64, 64),
            source="config.json of HuggingFaceTB/SmolLM2-135M-Instruct, bf16",
        ),
    )
}
