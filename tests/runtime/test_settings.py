"""Settings: everything wrong is named at once, and nothing of another role is in the way."""

import os
from dataclasses import fields
from pathlib import Path

import pytest

from pdd.core.errors import SettingsError
from pdd.core.timeouts import TimeOuts
from pdd.runtime.settings import (
    IndexSettings,
    RouterSettings,
    WorkerSettings,
    child_environment,
    read_settings,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing but the one setting that has no default."""
    for name in list(os.environ):
        if name.startswith("PDD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PDD_MODEL_DIR", str(tmp_path))


def test_without_any_variable_the_defaults_hold() -> None:
    settings = read_settings(WorkerSettings)
    assert settings.site == "a"
    assert settings.timeouts == TimeOuts()


def test_every_wrong_name_and_value_is_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_NATSURL", "nats://somewhere")
    monkeypatch.setenv("PDD_ENGINE", "tourch")
    monkeypatch.setenv("PDD_PAGES", "many")
    monkeypatch.setenv("PDD_TIMEOUTS__BEAT_S", "soon")
    monkeypatch.delenv("PDD_MODEL_DIR")
    with pytest.raises(SettingsError) as caught:
        read_settings(WorkerSettings)
    story = str(caught.value)
    assert "5 wrong settings" in story
    assert "PDD_MODEL_DIR: is required and not set" in story
    assert "PDD_NATSURL: no such setting; did you mean PDD_NATS_URL?" in story
    for name, value in (("PDD_ENGINE", "'tourch'"), ("PDD_PAGES", "'many'"), ("PDD_TIMEOUTS__BEAT_S", "'soon'")):
        assert f"{name}: " in story
        assert value in story


def test_a_whole_table_where_one_entry_belongs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_TIMEOUTS", "4")
    with pytest.raises(SettingsError, match="PDD_TIMEOUTS"):
        read_settings(WorkerSettings)


def test_all_roles_may_share_one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_REDIS_URL", "redis://127.0.0.1:7000")
    monkeypatch.setenv("PDD_PAGES", "64")
    assert read_settings(IndexSettings).redis_url == "redis://127.0.0.1:7000"
    assert read_settings(WorkerSettings).pages == 64
    assert read_settings(RouterSettings).http_port == 8000


def test_time_outs_that_contradict_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_TIMEOUTS__LEASE_S", "2")
    with pytest.raises(SettingsError, match="lease_s must be at least 2 suspect_s"):
        read_settings(RouterSettings)


def test_no_wait_is_longer_than_a_minute_by_default() -> None:
    table = TimeOuts()
    assert all(0 < getattr(table, field.name) <= 60 for field in fields(table))
    assert 0 < read_settings(WorkerSettings).drain_s <= 60


def test_a_child_is_told_nothing_but_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_SITE", "z")
    monkeypatch.setenv("HOME", "/somewhere")
    told = child_environment({"PDD_NAME": "prefill-1"})
    assert told["HOME"] == "/somewhere"
    assert [name for name in told if name.startswith("PDD_")] == ["PDD_NAME"]


def test_nothing_else_in_the_library_reads_the_environment() -> None:
    sources = [path for folder in ("shared/pdd", "services", "loadgen") for path in (ROOT / folder).rglob("*.py")]
    readers = [path.relative_to(ROOT).as_posix() for path in sources if "os.environ" in path.read_text()]
    assert readers == ["shared/pdd/runtime/settings.py"]
