"""Stories as text. `pytest tests/transcripts --rewrite` writes them anew; commit a difference only if you can explain it."""

from pathlib import Path

import pytest

from tests.transcripts.stories import STORIES

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", STORIES)
def test_a_story_goes_as_written(name: str, pytestconfig: pytest.Config) -> None:
    story, path = STORIES[name], HERE / f"{name}.txt"
    told = f"# {story.__doc__}\n\n{story().story.text()}"
    if pytestconfig.getoption("--rewrite"):
        path.write_text(told)
    assert told == path.read_text()


def test_every_transcript_has_its_story() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == set(STORIES)
