"""The contender to beat: the same model under plain `transformers.generate`, its own cache and its own attention."""

import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.generation import StoppingCriteria

from .asked import Asked, Took, Watch, answer_all, claim_stdout


class AfterFirst(StoppingCriteria):  # type: ignore[misc]
    """Never stops anything; starts the watch anew when each prompt has its first output."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self._calls = watch, 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self._calls += 1
        if self._calls == 1:
            self._watch.start()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def main(model_dir: str, dtype: str) -> None:
    pipe = claim_stdout()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype), local_files_only=True).eval()

    def perform(asked: Asked) -> Took:
        prompts = torch.tensor(asked.prompts)
        watch = Watch()
        watch.start()
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=asked.outputs,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=[AfterFirst(watch)] if asked.outputs > 1 else [],
        )
        watch.stop()
        outputs = len(asked.prompts) * (asked.outputs - 1)
        return watch.took(outputs or prompts.numel(), out[:, prompts.shape[1] :].tolist())

    with torch.inference_mode():
        answer_all(pipe, perform)


if __name__ == "__main__":
    main(*sys.argv[1:3])
