"""`pdd model FOLDER`: a model lies in FOLDER when this returns; the demo's is made there, any other must be there already."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..adapters.model_files import fingerprint
from ..adapters.model_files.demo_model import FOLDER
from ..core.errors import EngineError
from .model import demo_model


def model(
    folder: Annotated[Path, typer.Argument(help="Where models lie, each in a folder of its own.")],
    name: Annotated[str, typer.Option(help="Which of them.")] = FOLDER,
) -> None:
    """Look whether a model is whole, and print its fingerprint; make the demo's model if it is not there."""
    console = Console(highlight=False)
    try:
        found = demo_model(folder, console) if name == FOLDER else folder / name
        console.print(f"{found}: {fingerprint(found)}", soft_wrap=True)
    except EngineError as error:
        console.print(f"[red]pdd:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from None
