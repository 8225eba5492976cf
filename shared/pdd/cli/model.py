"""The demo model, obtained once, with its progress shown."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..adapters.model_files import ensure_demo_model


def demo_model(cache_dir: Path, console: Console) -> Path:
    """The model's folder. Raises EngineError saying what to install where its package is missing."""
    columns = (TextColumn("model: {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("looking", total=1.0)
        return ensure_demo_model(cache_dir, lambda what, done: bar.update(task, description=what, completed=done))
