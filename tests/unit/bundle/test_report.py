"""Reports of sessions: what they say, how large they are, and that they are safe to open."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rayhistory.bundle.line_chart import MAX_SERIES, line_chart
from rayhistory.bundle.report import Chart, LogTail, Report
from rayhistory.bundle.report_page import MAX_BYTES, report_page
from rayhistory.bundle.session_zip import extract_zip
from support.cli_call import Command
from support.recorded_sample import REF, settings_for, store_indexed_sample

HOSTILE = '"><script>alert(1)</script><img src=http://evil.example/x>'


def report(**changes: Any) -> Report:
    whole = Report(
        name="default/demo/s", url="http://h/s/", overview={"state": "ended", "started_ms": 0, "last_ms": 1},
        diagnosis={}, gaps=[], jobs=[], nodes=[], failed=[], failed_total=0, environment={}, charts=[], logs=[],
        missing=[],
    )  # fmt: skip
    return msgspec.structs.replace(whole, **changes)


class References(HTMLParser):
    """Elements that run code or load something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag] if tag in ("script", "img", "link", "iframe", "object") else []
        self.found += [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundle")
    store_indexed_sample(settings_for(directory), {"job-driver-sub-fail.log": b"loading\npassword=hunter2 refused\n"})
    return directory


@pytest.fixture
def rayhistory(directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(directory, monkeypatch, capfd)


def test_report_of_a_recorded_session_names_its_failures(rayhistory: Command, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    rayhistory.good("bundle", REF.path, "-o", str(file))
    page = file.read_text()
    for expected in (REF.path, "Failed tasks", "Findings", "boom", "Nodes", "Environment", "password=&lt;redacted&gt;"):
        assert expected in page, expected
    assert '"bar' not in page  # an environment variable of the sample
    parser = References()
    parser.feed(page)
    assert not parser.found


@pytest.mark.parametrize("name", ["run.txt", "run"])
def test_other_kinds_of_files_are_refused(rayhistory: Command, tmp_path: Path, name: str) -> None:
    assert ".html or .zip" in rayhistory.bad("bundle", REF.path, "-o", str(tmp_path / name))


def test_hostile_text_stays_text() -> None:
    finding = {"headline": HOSTILE, "code": "x", "severity": "critical", "confidence": "certain",
               "counts": dict.fromkeys(("tasks", "actors", "workers", "nodes", "jobs"), 1),
               "first_ms": 0, "detail": HOSTILE, "suggestion": HOSTILE,
               "evidence": [{"kind": HOSTILE, "id": HOSTILE, "text": HOSTILE}]}  # fmt: skip
    job = dict.fromkeys(("job_id", "submission_id", "status", "entrypoint", "message"), HOSTILE) | {"start_time": 0}
    page = report_page(
        report(
            name=HOSTILE, diagnosis={"verdict": None, "findings": [finding]}, environment={HOSTILE: HOSTILE},
            jobs=[job], missing=[HOSTILE],
            charts=[Chart(HOSTILE, [(HOSTILE, [(0, 1.0), (1000, 2.0)])], "B")], logs=[LogTail(HOSTILE, HOSTILE)],
        ),
        "1",
    )  # fmt: skip
    parser = References()
    parser.feed(page.decode())
    assert not parser.found


@pytest.mark.slow
def test_large_report_is_cut_to_its_limit_and_says_so() -> None:
    task = {"name": "t", "attempt_number": 0, "error_type": "E", "error_message": "x" * 100_000, "end_time_ms": 1}
    page = report_page(report(failed=[task] * 500, failed_total=40_000), "1")
    assert len(page) <= MAX_BYTES
    assert b"were cut" in page
    assert b"of 40000" in page


def test_chart_draws_finite_points_of_some_series() -> None:
    assert line_chart([]) == line_chart([("a", [(0, float("nan"))])]) == ""
    chart = line_chart([(f"node {number}", [(0, 1.0), (1, float("inf")), (2, 3.0)]) for number in range(10)], "B")
    assert chart.count("<polyline") == MAX_SERIES
    assert "2 more not drawn" in chart
    assert "inf" not in chart


def test_archive_opens_as_a_store(rayhistory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = rayhistory.good("sessions", "--json")
    rayhistory.good("bundle", REF.path, "-o", str(tmp_path / "run.zip"))
    opened = tmp_path / "opened"
    opened.mkdir()
    extract_zip(tmp_path / "run.zip", opened)
    monkeypatch.setenv("LOCAL_STORAGE_DIR", str(opened))
    assert _identities(rayhistory.good("sessions", "--json")) == _identities(sessions)


def _identities(sessions: str) -> list[tuple[str, str, str]]:
    return [(row["namespace"], row["cluster"], row["session"]) for row in json.loads(sessions)]
