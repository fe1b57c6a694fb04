"""Diagnoses of real failures: small recordings of real Ray sessions, indexed, diagnosed and served."""

import argparse
import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from failures.cases import CASES
from failures.fixtures import FIXTURES, unpack
from failures.score import diagnose_case
from rayhistory.api.in_process import InProcessTransport
from rayhistory.cli.arguments import setting_flags
from rayhistory.cli.local_ray import run
from rayhistory.cli.local_ray.recording import RecordedSession
from rayhistory.server.app import create_app
from support.cli_call import Command
from support.index_builder import settings_for

RECORDED = sorted(path.name.removesuffix(".tar.gz") for path in FIXTURES.glob("*.tar.gz"))


@asynccontextmanager
async def client(directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings_for(directory / "store", index_ahead="false"))
    transport = InProcessTransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        yield http


def get(directory: Path, *paths: str) -> list[httpx.Response]:
    async def send() -> list[httpx.Response]:
        async with client(directory) as http:
            return [await http.get(path, headers={"Accept": "text/html,application/json"}) for path in paths]

    return asyncio.run(send())


def diagnosis(directory: Path, case: str) -> dict[str, Any]:
    ref = unpack(case, directory)
    response = get(directory, f"{ref.url}api/history/diagnosis")[0]
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


@pytest.mark.parametrize("case", RECORDED)
def test_recorded_failure_gets_its_verdict(tmp_path: Path, case: str) -> None:
    found = diagnosis(tmp_path, case)
    wanted = CASES[case]
    assert (found["verdict"] or {}).get("code") in (wanted.verdict, *wanted.allowed)
    if wanted.verdict is None:
        assert found["verdict"] is None


@pytest.mark.parametrize("case", RECORDED)
def test_every_failure_of_a_recording_is_in_exactly_one_finding(tmp_path: Path, case: str) -> None:
    unpack(case, tmp_path / case)
    assert diagnose_case(case, tmp_path, "complete").violations == []


def test_crash_is_explained_without_log_files(tmp_path: Path) -> None:
    """Ray forwards the last lines of a worker to its driver, and those are in the job's message."""
    ref = unpack("crashes-segfault", tmp_path)
    for path in (tmp_path / "store").rglob("logs"):
        shutil.rmtree(path)
    found = get(tmp_path, f"{ref.url}api/history/diagnosis")[0].json()
    assert found["verdict"]["code"] == "worker_segfault"
    assert "worker_segfault" in [skipped["code"] for skipped in found["skipped"]]


def test_silent_death_without_metrics_is_unexplained(tmp_path: Path) -> None:
    """Whether memory was full is not known, so that nothing is claimed."""
    ref = unpack("crashes-killed", tmp_path)
    shutil.rmtree(tmp_path / "store/ray-history/metrics")
    found = get(tmp_path, f"{ref.url}api/history/diagnosis")[0].json()
    assert found["verdict"]["code"] == "unexplained"
    assert "no memory samples" in found["findings"][0]["detail"]


def test_exit_status_in_the_log_of_the_raylet_decides(tmp_path: Path) -> None:
    """Raylets that reap their children write such a line; its pid is that of the dead worker."""
    ref = unpack("crashes-killed", tmp_path)
    (stderr,) = (tmp_path / "store").rglob("worker-*-3456.err")
    line = "[2026-11-18 03:12:20,235 I 3122 3122] (raylet) subreaper.cc:74: Child process 3456 exited from signal 9\n"
    stderr.with_name("raylet.out").write_text(f"{'x' * 2_000_000}\n{line}")
    found = get(tmp_path, f"{ref.url}api/history/diagnosis")[0].json()
    assert found["verdict"]["confidence"] == "certain"
    assert "was killed by signal 9 (SIGKILL)" in found["verdict"]["headline"]


def test_failure_keeps_its_verdict_without_an_orderly_end(tmp_path: Path) -> None:
    ref = unpack("exceptions-task_raises", tmp_path)
    for path in (tmp_path / "store").rglob("end.json"):
        path.with_name("alive").touch()
        os.utime(path.with_name("alive"), (1, 1))
        path.unlink()
    found = get(tmp_path, f"{ref.url}api/history/diagnosis")[0].json()
    assert found["verdict"]["code"] == "user_exception"


def test_lost_node_is_known_without_logs_and_metrics(tmp_path: Path) -> None:
    ref = unpack("crashes-lost_node-kill_node", tmp_path)
    for path in [*(tmp_path / "store").rglob("logs"), tmp_path / "store/ray-history/metrics"]:
        shutil.rmtree(path)
    found = get(tmp_path, f"{ref.url}api/history/diagnosis")[0].json()
    assert (found["verdict"]["code"], found["findings"][0]["counts"]["tasks"]) == ("node_lost", 3)
    assert {"worker_segfault", "container_oom_killed"} <= {each["code"] for each in found["skipped"]}


def test_events_that_were_lost_with_a_node_are_reported(tmp_path: Path) -> None:
    found = diagnosis(tmp_path, "crashes-lost_node-kill_node")
    (missing,) = (each for each in found["findings"] if each["code"] == "events_missing")
    assert "3 tasks have no start time" in missing["headline"]
    assert missing["evidence"][0]["url"].endswith("/gaps")


def test_picture_of_states_covers_the_tasks_of_the_session(tmp_path: Path) -> None:
    ref = unpack("exceptions-dependency_chain", tmp_path)
    found = get(tmp_path, f"{ref.url}api/history/diagnosis")[0].json()
    states = found["states"]["states"]
    assert list(states) == ["waiting_args", "waiting_node", "fetching_args", "starting", "waiting_actor", "running"]
    assert {len(counts) for counts in states.values()} == {60}
    assert max(states["running"]) >= 1
    assert all(counts[-1] == 0 for counts in states.values())


@pytest.mark.parametrize(
    "case", ["crashes-lost_node-kill_node", "resources-infeasible_task", "crashes-runs_on-stop_job"]
)
def test_each_state_of_the_picture_has_its_share_of_time(tmp_path: Path, case: str) -> None:
    """Also the states in which tasks ended, because they were never placed, or their node died."""
    found = diagnosis(tmp_path, case)
    shares = {share["state"]: share["ms"] for share in found["time_shares"]}
    width_ms = (found["states"]["end_ms"] - found["states"]["start_ms"]) / 60
    for state, counts in found["states"]["states"].items():
        assert abs(shares.get(state, 0) - sum(counts) * width_ms) <= 2 * width_ms * max(1, *counts), state


def test_page_markdown_and_command_show_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ref = unpack("exceptions-task_raises", tmp_path)
    # Markdown waits for the index and the diagnosis; a page shows the progress after some seconds.
    markdown, page, home = get(tmp_path, f"{ref.url}diagnosis.md", f"{ref.url}diagnosis", "/home")
    assert "ValueError: cannot parse record 3" in page.text
    assert markdown.headers["content-type"].startswith("text/markdown")
    assert "ValueError: cannot parse record 3" in markdown.text
    assert "ValueError: cannot parse record 3" in home.text
    flags = ("--local-storage-dir", str(tmp_path / "store"), "--cache-dir", str(tmp_path / "cache"))
    done = Command(tmp_path, monkeypatch, capfd)("diagnose", *flags)
    assert done.code == 3
    assert "user_exception" in done.out


def test_evidence_of_a_crash_leads_to_the_last_lines_of_its_log(tmp_path: Path) -> None:
    found = diagnosis(tmp_path, "crashes-segfault")
    url = next(each["url"] for each in found["findings"][0]["evidence"] if each["kind"] == "log")
    page = get(tmp_path, url)[0]
    assert page.status_code == 200
    assert "Fatal Python error: Segmentation fault" in page.text


def test_failed_run_ends_with_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ref = unpack("crashes-segfault", tmp_path)
    arguments = argparse.Namespace(setting_local_storage_dir=str(tmp_path / "store"))
    run.explain(RecordedSession(ref, 1), settings_for(tmp_path / "store"), setting_flags(arguments))
    printed = capsys.readouterr().err
    assert "Why it failed: Worker 7850 on 127.0.0.1 (task crash) crashed with a segmentation fault" in printed
    assert f"rayhistory diagnose --local-storage-dir={tmp_path}/store {ref.path}\n" in printed


def test_diagnosis_as_of_a_point_in_time_is_provisional(tmp_path: Path) -> None:
    ref = unpack("exceptions-task_raises", tmp_path)
    overview, whole = get(tmp_path, f"{ref.url}api/history/overview", f"{ref.url}api/history/diagnosis")
    assert not whole.json()["provisional"]
    early = overview.json()["started_ms"] + 500
    before = get(tmp_path, f"{ref.url.rstrip('/')}@{early}/api/history/diagnosis")[0].json()
    assert before["provisional"]
    assert before["verdict"] is None
