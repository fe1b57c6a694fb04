"""`rayhistory index` builds tables and products; `--missing` only what a session lacks."""

import re
from pathlib import Path

import pytest

from rayhistory.cli import index
from rayhistory.sessions import Layout
from support.cli_call import Command
from support.counted_names import PATH
from support.paths import ROOT
from support.recorded_sample import REF, settings_for, store_sample

pytestmark = pytest.mark.slow


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    store_sample(settings_for(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    return Command(tmp_path, monkeypatch, capfd)


def test_missing_products_of_an_old_session_are_built(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "generation 1" in command.good("index")
    assert command.good("index", "--missing") == ""
    monkeypatch.setattr(index, "PRODUCTS", (PATH + "COUNTED_NAMES",))
    built = command.good("index", "--missing")
    assert re.search(r"counted: \d+ B, built in", built)
    assert command.good("index", "--missing") == ""


def test_product_that_fails_is_reported(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(index, "PRODUCTS", (PATH + "FAILING",))
    result = command("index")
    assert result.code == 1
    assert "generation 1" in result.out
    assert "support.counted_names of" in result.out
    assert "the rules are wrong" in result.out
    assert list(tmp_path.rglob(Layout().manifest_key(REF, 1)))  # the tables are visible
