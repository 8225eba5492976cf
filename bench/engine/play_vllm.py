"""The contender to keep in sight: vLLM on the same CPU, its engine in this process, one thread."""

import os
import sys

from bench.engine.asked import Asked, Took, Watch, answer_all, claim_stdout

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "2",
}


def main(model_dir: str, dtype: str, longest: int, batch: int) -> None:
    pipe = claim_stdout()
    os.environ |= SETTINGS  # read when vllm is imported
    from vllm import EngineArgs, LLMEngine, SamplingParams, TokensPrompt

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=model_dir,
            skip_tokenizer_init=True,
            dtype=dtype,
            max_model_len=longest,
            max_num_seqs=batch,
            max_num_batched_tokens=max(longest, 8192),
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
    )
    turn = 0

    def perform(asked: Asked) -> Took:
        nonlocal turn
        turn += 1
        sampling = SamplingParams(temperature=0, max_tokens=asked.outputs, ignore_eos=True, detokenize=False)
        written: dict[str, list[int]] = {f"{turn}.{n}": [] for n in range(len(asked.prompts))}
        watch = Watch()
        watch.start()
        for name, ids in zip(written, asked.prompts, strict=True):
            engine.add_request(name, TokensPrompt(prompt_token_ids=ids), sampling)
        before = -1
        while engine.has_unfinished_requests():
            for out in engine.step():
                written[out.request_id] = list(out.outputs[0].token_ids)
            if before < 0 and asked.outputs > 1 and all(written.values()):
                before = sum(map(len, written.values()))
                watch.start()
        watch.stop()
        tokens = sum(map(len, written.values())) - before if asked.outputs > 1 else sum(map(len, asked.prompts))
        return watch.took(tokens, list(written.values()))

    answer_all(pipe, perform)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
