"""`rayhistory metrics` plots queries over stored samples, or writes their points."""

import json
from pathlib import Path

import duckdb
import pytest

from support.cli_call import Command
from support.stored_metrics import START_MS, samples, store_object, store_session


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    store_session(tmp_path / "store")
    columns: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {
        ("ray_tasks", (("State", state),)): [factor * number for number in range(41)]
        for state, factor in (("RUNNING", 1.0), ("FAILED\x1b[31m", 0.5))
    }
    store_object(tmp_path / "store", "a" * 56, samples(columns))
    return Command(tmp_path, monkeypatch, capfd)


def test_query_is_plotted_with_a_letter_per_series(command: Command) -> None:
    text = command.good("metrics", "sum(ray_tasks) by (State)")
    lines = text.splitlines()
    assert lines[0].startswith("        40 ┤")
    assert lines[0].endswith("b")
    assert 'b  {State="RUNNING"}' in text
    assert "\x1b" not in text
    assert lines[-1].split()[-3:] == ["0", "40", "40"]


def test_points_are_written_as_rows(command: Command, tmp_path: Path) -> None:
    query = ["metrics", 'ray_tasks{State="RUNNING"} * 2', "--step", "15"]
    rows = json.loads(command.good(*query, "--json"))
    assert len(rows) == 41
    assert (rows[1]["time_ms"], rows[1]["value"]) == (START_MS + 15_000, 2.0)
    assert command.good(*query, "--csv").splitlines()[0] == "series,time_ms,value"
    command.good(*query, "--parquet", str(tmp_path / "out.parquet"))
    assert duckdb.sql(f"SELECT count(*), max(value) FROM '{tmp_path / 'out.parquet'}'").fetchone() == (41, 80.0)


def test_time_range_can_be_chosen(command: Command) -> None:
    rows = json.loads(
        command.good(
            "metrics", "ray_tasks", "--from", str(START_MS), "--to", str(START_MS + 30_000), "--step", "15", "--json"
        )
    )
    assert len(rows) == 6


def test_query_without_result_says_so(command: Command) -> None:
    assert command.good("metrics", 'ray_tasks{State="none"}').strip() == "no data"
    assert "metric nothing is not stored; 'rayhistory metrics'" in command.good("metrics", "nothing")
    assert command.good("metrics", "sum(ray_task)").strip() == (
        "no data: metric ray_task is not stored; did you mean ray_tasks?"
    )
    assert json.loads(command.good("metrics", "nothing", "--json")) == []


def test_metrics_are_listed_without_a_query(command: Command) -> None:
    assert command.good("metrics").split() == ["ray_tasks"]
    assert json.loads(command.good("metrics", "--json")) == [{"name": "ray_tasks"}]


@pytest.mark.parametrize(
    ("argv", "text"),
    [(["sum("], "parse error"), (["up", "--step", "0"], "--step"), (["up", "--from", "soon"], "--from"),
     (["ray_tasks * on(job) ray_tasks"], "many-to-many")],
)  # fmt: skip
def test_wrong_calls_are_one_line(command: Command, argv: list[str], text: str) -> None:
    assert text in command.bad("metrics", *argv)


def test_session_without_metrics_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store_session(tmp_path / "store")
    assert "no stored metrics" in Command(tmp_path, monkeypatch, capfd).bad("metrics", "up")
