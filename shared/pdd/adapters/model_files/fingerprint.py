"""A model's name that two sites can compare: equal only where KV made by one means the same to the other.

Covers the weights, config.json, tokenizer and chat template, the canonical KV shape and our protocol version; not page size or dtype.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from ...core import PROTOCOL_VERSION
from ...core.errors import EngineError
from ...core.fingerprint import fingerprint_of

DIGESTS = ".pdd-digests.json"  # what was hashed already, by file name, valid while size and mtime stay
SAYS_NOTHING = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "use_cache")
DIGITS = 16  # of each field's digest


def fingerprint(model_dir: Path) -> str:
    """See core/fingerprint.py. EngineError where the folder is no model. Hashes the weights once; then a few file times are looked up."""
    weights = sorted(model_dir.glob("*.safetensors"))
    if not weights:
        raise EngineError(f"{model_dir} holds no safetensors")
    config = _read_json(model_dir / "config.json")
    fields = {
        "weights": _digest(_digests(model_dir, weights)),
        "config": _digest({name: value for name, value in config.items() if name not in SAYS_NOTHING}),
        "tokenizer": _digest(hashlib.sha256(_read(model_dir / "tokenizer.json")).hexdigest()),
        "chat_template": _digest(_chat_template(model_dir)),
        "kv": "x".join(str(size) for size in _kv_shape(config)),
        "protocol": str(PROTOCOL_VERSION),
    }
    return fingerprint_of(fields)


def _digest(part: Any) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _kv_shape(config: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Layers, KV heads, head_dim, whether the config spells them out or not."""
    heads, hidden = config.get("num_attention_heads") or 1, config.get("hidden_size") or 0
    kv_heads = config.get("num_key_value_heads") or heads
    return config.get("num_hidden_layers"), kv_heads, config.get("head_dim") or hidden // heads


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digests(model_dir: Path, files: list[Path]) -> dict[str, list[Any]]:
    """Name -> [size, sha256]."""
    known = _known_digests(model_dir)
    found: dict[str, list[Any]] = {}
    for file in files:
        stat = file.stat()
        entry = known.get(file.name, [])
        if entry[:2] != [stat.st_size, stat.st_mtime_ns] or len(entry) != 3:
            entry = [stat.st_size, stat.st_mtime_ns, sha256_of(file)]
        found[file.name] = entry
    if found != known:
        _keep_digests(model_dir, found)
    return {name: [entry[0], entry[2]] for name, entry in found.items()}


def _known_digests(model_dir: Path) -> dict[str, list[Any]]:
    try:
        known = json.loads((model_dir / DIGESTS).read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) and all(isinstance(entry, list) for entry in known.values()) else {}


def _keep_digests(model_dir: Path, found: dict[str, list[Any]]) -> None:
    """Atomic, for several workers start at once. A folder that cannot be written is hashed each time."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=model_dir, prefix=DIGESTS, delete=False) as file:
            json.dump(found, file)
        Path(file.name).replace(model_dir / DIGESTS)
    except OSError:
        return


def _chat_template(model_dir: Path) -> str:
    beside = model_dir / "chat_template.jinja"
    if beside.exists():
        return _read(beside).decode()
    return json.dumps(_read_json(model_dir / "tokenizer_config.json").get("chat_template", ""))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise EngineError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise EngineError(f"{path} is no JSON object")
    return value
