"""What a step costs, computed and measured. Computed: a roofline in five numbers, which routing, planner and simulator share.
Measured: `Pace`, the engine's own averages, which beats carry.
"""

from dataclasses import dataclass

from .steps import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class EngineCost:
    """Seconds of one step of one model on one chip.

    A step costs its overhead, then the larger of reading the weights and computing the linear layers of all its tokens, then attention:
    by pairs for slices longer than one token, by memory traffic for decodes. Of the routed experts are read those that some token
    meets. A row without weights of its own charges a decode's linear layers in `decode_s`.
    """

    step_s: float  # launches, sampling, communication; the weights too where `weights_s` is 0
    prefill_tokens_per_s: float  # linear layers
    attention_s_per_pair: float = 0.0  # per (computed token, token it attends to): the quadratic term of prefill
    decode_s: float = 0.0  # per decoding sequence, whatever its context
    kv_read_s_per_token: float = 0.0  # per token of context that a decode reads
    import_bytes_per_s: float = 10e9  # staging memory into pages
    weights_s: float = 0.0  # reading what every step reads
    experts_s: float = 0.0  # reading all routed experts
    expert_share: float = 0.0  # of the experts that one token meets

    def seconds(self, plan: StepPlan) -> float:
        prefilled = decodes = read = 0
        pairs = 0.0
        for part in plan.slices:
            tokens = part.stop - part.start
            if tokens == 1:
                decodes += 1
                read += part.stop
            else:
                prefilled += tokens
                pairs += tokens * (part.start + part.stop + 1) / 2
        return self.seconds_of(prefilled, pairs, decodes, read)

    def seconds_of(self, prefilled: int, pairs: float, decodes: int, read: int) -> float:
        """`prefilled` tokens in slices with so many (token, token it attends to) `pairs`; `decodes` that `read` tokens of context."""
        weights = self.weights_s + self.experts_s * (1 - (1 - self.expert_share) ** (prefilled + decodes))
        computed = prefilled + decodes if weights else prefilled
        linear = max(weights, computed / self.prefill_tokens_per_s)
        return (
            self.step_s
            + linear
            + pairs * self.attention_s_per_pair
            + decodes * self.decode_s
            + read * self.kv_read_s_per_token
        )


# Orders of magnitude, to be replaced by measured rows.
COSTS = {
    "instant": EngineCost(step_s=0.0, prefill_tokens_per_s=float("inf"), import_bytes_per_s=float("inf")),
    "two-cores-135m": EngineCost(0.035, 350.0, 4e-8, 0.008, 2e-6, 1e9),
    "slow-motion": EngineCost(
        0.1, 750.0, 0.0, 0.002, 2e-6, 1e9
    ),  # slow enough that the processes around it cost nothing
    "h100-70b-tp8": EngineCost(0.012, 24_000.0, 2e-11, 4e-5, 1.2e-8, 20e9),
}

WEIGHT = 0.1  # of the newest step in an average


@dataclass(slots=True)
class Pace:
    """Exponentially weighted averages. The prefill rate is tokens over seconds, both averaged, so that small steps weigh little."""

    step_s: float = 0.0
    _tokens: float = 0.0
    _seconds: float = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        return self._tokens / self._seconds if self._seconds > 0 else 0.0

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """A step of decodes alone counts for `step_s`; one that prefills more tokens than it decodes, for the rate."""
        lengths = [part.stop - part.start for part in plan.slices]
        decodes = sum(length == 1 for length in lengths)
        prefilled = sum(lengths) - decodes
        if not prefilled:
            self.step_s += (WEIGHT if self.step_s else 1.0) * (result.seconds - self.step_s)
        elif prefilled > decodes:
            weight = WEIGHT if self._seconds else 1.0
            self._tokens += weight * (prefilled - self._tokens)
            self._seconds += weight * (result.seconds - self._seconds)
