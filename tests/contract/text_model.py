"""A model folder without weights: what the text layer reads, with a real byte-level tokenizer made on the spot."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>")
END = 2
BEGIN = 3
CONTEXT = 2048
PADDED = 8  # rows of the embedding that are no token
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = (
    "The relay writes the first words while the cache is on its way.",
    "STOP here, or there; naïve café, 東京の天気, привет мир, emoji 🙂🚀.",
)


def make_text_folder(
    folder: Path, *, template: str | None = CHATML, special: tuple[str, ...] = (), **generation: Any
) -> Path:
    """Plain texts begin with `<s>`, as Llama's do. `generation` goes into generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_tokens([AddedToken("<plain>", special=False, normalized=False)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", BEGIN)])
    tokenizer.save(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    config = {
        "vocab_size": size + PADDED,
        "max_position_embeddings": CONTEXT,
        "eos_token_id": END,
        "model_type": "llama",
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "pad_token": {"__type": "AddedToken", "content": "<|endoftext|>", "special": True},
        "chat_template": template,
    }
    for name, content in (
        ("config.json", config),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", {"eos_token_id": [END]} | generation),
    ):
        (folder / name).write_text(json.dumps(content))
    return folder


def sentence_piece() -> Tokenizer:
    """Llama 2's kind: metaspace, and a token for each byte that the vocabulary does not spell."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdehlorw", "▁he", "▁w", "é"]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [("▁", "w")], byte_fallback=True))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer
