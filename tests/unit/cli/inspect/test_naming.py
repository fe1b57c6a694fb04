"""One way to name things everywhere: sessions, jobs, tasks, actors, nodes and times."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from rayhistory.sizes import format_size
from rayhistory.terminal_text import strip_ansi
from rayhistory.web.format import format_duration, format_iso
from support.cli_call import Command
from support.recorded_sample import NODE, REF, live_rows, settings_for, store_indexed_sample, store_sample

WORKER = "worker-d08dbbc3dc8723a409171043cb3c6beeb647c44e3bacd34df892a9a5-01000000-16292"
ACTOR = "8a561470475d4901e09868de01000000"
ACTORS_WORKER = "worker-8abaf130ab0f5c41674bf40d9d4802072a1de0b5d0c775f42735ab36-01000000-16611"
TASK = "c2668a65bda616c1ffffffffffffffffffffffff01000000"
FILES = {
    f"{WORKER}.out": b"task\n" * 60,  # the range of the task is in the middle
    f"{ACTORS_WORKER}.err": b"actor output\n",
    "job-driver-sub-ok.log": b"driver output\n",
    "raylet.out": b"raylet\n",
}
END = "2026-11-15T19:20:00Z"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("naming")
    store_indexed_sample(settings_for(directory), FILES)
    return directory


@pytest.fixture
def rayhistory(directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(directory, monkeypatch, capfd)


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ((), REF.path),
        ((f"{REF.namespace}/{REF.cluster}",), REF.path),
        ((f"@{END}",), REF.path),
        ((f"{REF.namespace}/{REF.cluster}@{END}",), REF.path),
        ((REF.session,), ""),
        ((REF.path,), ""),
        ((f"{REF.session}@{END}",), ""),
        ((f"{REF.path}@{END}",), ""),
    ],
)
def test_session_is_named_in_any_form_and_a_choice_is_reported(
    rayhistory: Command, name: tuple[str, ...], chosen: str
) -> None:
    done = rayhistory("nodes", *name, "--json")
    assert (done.code, done.chosen) == (0, chosen), done.err
    assert [row["node_id"] for row in json.loads(done.out)] == [NODE]


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (("sql", "select 1"), (REF.session,)),
        (("sql", "select 1", "--json"), (REF.session,)),
        (("sql", "select 1"), ("--session", REF.session)),
        (("summary",), (REF.session,)),
        (("summary",), ("--session", REF.session)),
        (("grep", "raylet", "-i", "-C2"), (REF.session,)),
        (("metrics", "up"), ("--session", REF.session)),
        (("logs", "--list", "raylet*"), (REF.session,)),
        (("grep", "raylet"), (REF.session,)),
        (("timeline", "-o", "-"), (REF.session,)),
        (("gaps", "--json"), (REF.session,)),
        (("diagnose", "--json"), (REF.session,)),
        (("open", "--print", "--port", "1"), (REF.session,)),
    ],
    ids=lambda argv: argv[0],
)
def test_every_command_reports_the_session_it_chose(
    rayhistory: Command, command: tuple[str, ...], named: tuple[str, ...]
) -> None:
    assert rayhistory(*command).chosen == REF.path
    assert rayhistory(*command, *named).chosen == ""


def test_export_is_of_the_newest_session_unless_one_is_named(rayhistory: Command, tmp_path: Path) -> None:
    assert rayhistory("export", "--to", str(tmp_path / "newest")).chosen == REF.path
    assert (tmp_path / "newest" / "tasks.parquet").exists()
    assert "has no session of default/x" in rayhistory.bad("export", "default/x", "--to", str(tmp_path / "x"))


def test_sql_reads_standard_input(rayhistory: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("select 41 + 1 as answer"))
    assert json.loads(rayhistory.good("sql", "-", "--json")) == [{"answer": 42}]


def submitted_job() -> dict[str, str]:
    return next(job for job in live_rows("v0_jobs_detail") if job["submission_id"] == "sub-ok")


def test_job_is_named_by_either_id(rayhistory: Command) -> None:
    job = submitted_job()
    by_submission = rayhistory.good("logs", "--job", job["submission_id"])
    assert by_submission == "driver output\n"
    assert rayhistory.good("logs", "--job", job["job_id"]) == by_submission
    assert rayhistory.good("timeline", "-o", "-", "--job", job["submission_id"]) == rayhistory.good(
        "timeline", "-o", "-", "--job", job["job_id"]
    )


def test_task_is_named_by_the_start_of_its_id(rayhistory: Command) -> None:
    whole = rayhistory.good("logs", "--task", TASK)
    assert "task" in whole
    assert rayhistory.good("logs", "--task", TASK[:16]) == whole
    assert rayhistory.good("logs", "--task", TASK[:16].upper()) == whole


@pytest.mark.parametrize("name", [ACTOR, ACTOR[:12], "detached-b", "B"])
def test_actor_is_named_by_id_name_or_class(rayhistory: Command, name: str) -> None:
    assert rayhistory.good("logs", "--actor", name, "--err") == "actor output\n"


def test_logs_of_an_actors_task_are_those_of_the_actor(rayhistory: Command) -> None:
    """Ray records no range of an actor's task. Its own error names a command that needs the live cluster."""
    done = rayhistory("logs", "--task", "B.ping", "--err")
    assert (done.code, done.out) == (0, "actor output\n")
    reason = "Ray did not record which output this task wrote"
    assert done.err == f"rayhistory: {reason}, showing the output of its actor {ACTOR}\n"


def test_search_of_an_actors_task_is_in_the_log_of_the_actor(rayhistory: Command) -> None:
    done = rayhistory("grep", "output", "--task", "B.ping")
    assert (done.code, done.out) == (0, f"{NODE[:8]}/{ACTORS_WORKER}.err:1:actor output\n")
    reason = "Ray did not record which output this task wrote"
    assert done.err == f"rayhistory: {reason}, searching the output of its actor {ACTOR} during the task\n"
    assert rayhistory("grep", "driver output", "--task", "B.ping").code == 1


@pytest.mark.parametrize(
    ("flag", "names", "output"),
    [
        ("--job", ("sub-ok", "03000000"), "driver output"),
        ("--task", (TASK, TASK[:16]), "task"),
        ("--actor", (ACTOR, ACTOR[:12], "detached-b", "B"), "actor output"),
        ("--node", (NODE, NODE[:8], "192.0.2.2"), "raylet"),
    ],
)
def test_searches_take_the_same_names(rayhistory: Command, flag: str, names: tuple[str, ...], output: str) -> None:
    for name in names:
        assert rayhistory.good("grep", output, flag, name).endswith(f":{output}\n"), name
    assert rayhistory("grep", "elsewhere|line", flag, names[0]).code == 1


@pytest.mark.parametrize("flag", ["--job", "--task", "--actor"])
def test_search_for_an_unknown_name_is_an_error(rayhistory: Command, flag: str) -> None:
    """No matching line would look like an answer."""
    done = rayhistory("grep", "x", flag, "nobody")
    assert (done.code, f"the session has no {flag[2:]} 'nobody'" in done.err) == (2, True)


def test_node_is_named_by_address_or_start_of_its_id(rayhistory: Command) -> None:
    whole = rayhistory.good("logs", "--file", "raylet.out", "--node", NODE)
    (node,) = json.loads(rayhistory.good("nodes", "--json"))
    assert whole == "raylet\n"
    assert rayhistory.good("logs", "--file", "raylet.out", "--node", NODE[:8]) == whole
    assert rayhistory.good("logs", "--file", "raylet.out", "--node", node["node_ip"]) == whole


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("--task", "nothing-like-that"),
            "the session has no task 'nothing-like-that': list them with rayhistory tasks",
        ),
        (("--actor", "Nobody"), "the session has no actor 'Nobody': list them with rayhistory actors"),
        (("--job", "none"), "the session has no job 'none': list jobs with rayhistory jobs"),
        (("--file", "*.nothing"), "no file matches '*.nothing': list files with rayhistory logs --list"),
        (("--file", "*", "--follow"), "--follow needs exactly one"),
    ],
)
def test_unknown_name_is_a_one_line_error(rayhistory: Command, argv: tuple[str, ...], message: str) -> None:
    assert message in rayhistory.bad("logs", *argv)


def test_ambiguous_name_is_an_error_with_ids(rayhistory: Command) -> None:
    names = [row["name"] for row in json.loads(rayhistory.good("tasks", "--json"))]
    repeated = next(name for name in names if names.count(name) > 1)
    assert f"several tasks match {repeated!r}: use one of the ids " in rayhistory.bad("logs", "--task", repeated)


def test_ids_of_an_ambiguous_name_have_a_state_and_failed_ones_are_first(rayhistory: Command) -> None:
    error = rayhistory.bad("logs", "--task", "A.inc")
    failed, finished = (
        "359ec6ce30d3ca2d52297792c799d4f52f1fb4a701000000",
        "8849b62d89cb30f952297792c799d4f52f1fb4a701000000",
    )
    assert error.endswith(f"use one of the ids {failed} (FAILED), {finished} (FINISHED)")
    newest_first = [f"{id_} (FINISHED, started {at})" for id_, at in newest_ok_tasks(rayhistory)[:5]]
    assert f"use one of the ids {', '.join(newest_first)}" in rayhistory.bad("logs", "--task", "ok")


def newest_ok_tasks(rayhistory: Command) -> list[tuple[str, str]]:
    rows = json.loads(rayhistory.good("tasks", "--json", "--where", "name=ok", "--sort=-start_time_ms"))
    return [(row["task_id"], format_iso(row["start_time_ms"])) for row in rows]


def test_file_glob_shows_every_matching_file_with_its_name(rayhistory: Command) -> None:
    shown = rayhistory.good("logs", "--file", "*.out")
    assert shown == f"==> raylet.out <==\nraylet\n\n==> {WORKER}.out <==\n" + "task\n" * 60
    assert rayhistory.good("logs", "--file", "ray*") == "raylet\n"


@pytest.mark.parametrize(
    "when", ["2026-11-15T19:19:00Z", "2026-11-15T19:19:00", "2026-11-15T20:19:00+01:00", "1794770340000"]
)
def test_times_in_conditions_are_iso_or_milliseconds(rayhistory: Command, when: str) -> None:
    before = json.loads(rayhistory.good("tasks", "--json", "--where", f"start_time_ms<{when}"))
    after = json.loads(rayhistory.good("tasks", "--json", "--where", f"start_time_ms>={when}"))
    assert before
    assert after
    assert max(row["start_time_ms"] for row in before) < 1794770340000 <= min(row["start_time_ms"] for row in after)


def test_invalid_time_is_an_error_with_an_example(rayhistory: Command) -> None:
    error = rayhistory.bad("tasks", "--where", "start_time_ms>yesterday")
    assert "start_time_ms is a number, not 'yesterday': use milliseconds since 1970, or a time such as" in error


def test_tasks_have_the_last_line_of_the_exception(rayhistory: Command) -> None:
    failed = json.loads(rayhistory.good("tasks", "--json", "--where", "error_message~ValueError", "--sort", "task_id"))
    text = rayhistory.good("tasks", "--where", "error_message~ValueError", "--sort", "task_id")
    assert text.splitlines()[0].endswith("ERROR_MESSAGE")
    for row, line in zip(failed, text.splitlines()[1:], strict=True):
        assert line.endswith(strip_ansi(row["error_message"]).rstrip().splitlines()[-1])
    assert any("\x1b[31m" in row["error_message"] for row in failed)
    assert "[31m" not in text


def test_texts_are_whole_where_no_terminal_cuts_them(rayhistory: Command) -> None:
    assert rayhistory.good("sql", "select repeat('x', 300) as text").split() == ["TEXT", "x" * 300]


@pytest.mark.parametrize(("table", "column"), [("tasks", "state"), ("jobs", "status")])
def test_failures_are_shown_first(rayhistory: Command, table: str, column: str) -> None:
    """The text shows 100 rows, and a failure must be among them."""
    shown = rayhistory.good(table, "--columns", column).split()[1:]
    failed = shown.count("FAILED")
    assert 0 < failed < len(shown)
    assert shown[:failed] == ["FAILED"] * failed
    assert rayhistory.good(table, "--columns", column, f"--sort=-{column}").split()[-1] == "FAILED"


def test_tasks_hide_drivers_and_inferred_ends_unless_asked_for(rayhistory: Command) -> None:
    shown = json.loads(rayhistory.good("tasks", "--json"))
    everything = json.loads(rayhistory.good("tasks", "--json", "--all"))
    hidden = [row for row in everything if row not in shown]
    assert shown
    assert hidden
    assert all(row["type"] == "DRIVER_TASK" or row["closed_by_history"] for row in hidden)
    assert not any(row["type"] == "DRIVER_TASK" or row["closed_by_history"] for row in shown)
    drivers = json.loads(rayhistory.good("tasks", "--json", "--where", "type=DRIVER_TASK", "--all"))
    assert drivers == [row for row in everything if row["type"] == "DRIVER_TASK"]


@pytest.mark.slow
def test_size_of_a_session_is_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In lists of sessions, and in what retention would remove: all its objects but the index."""
    settings = settings_for(tmp_path)
    store_sample(settings, FILES | {"gcs_server.out": b"x" * 1_000_000})
    files = [path for path in Path(settings.local_storage_dir).rglob("*") if path.is_file()]
    for path in files:
        os.utime(path, (1_794_770_513, 1_794_770_513))
    stored = sum(path.stat().st_size for path in files)
    rayhistory = Command(tmp_path, monkeypatch, capfd)
    rayhistory.good("nodes")  # builds the index
    (session,) = json.loads(rayhistory.good("sessions", "--json"))
    assert session["size_bytes"] == stored
    removed = rayhistory.good("retention", "--max-age", "1h")
    index = sum(path.stat().st_size for path in Path(settings.local_storage_dir).rglob("*") if path.is_file()) - stored
    other = format_size(index - session["index_bytes"])
    sizes = f"{format_size(stored)} and an index of {format_size(session['index_bytes'])}"
    assert f"would remove, {sizes}, {other} of other data that can be rebuilt: ended" in removed
    assert "--max-bytes is 1k\n" in rayhistory.good("retention", "--max-bytes", "1k")


def test_sessions_are_filtered_and_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store_indexed_sample(settings_for(tmp_path))
    other = REF.__class__.checked("team-a", "other", REF.session)
    store_sample(settings_for(tmp_path), ref=other)
    rayhistory = Command(tmp_path, monkeypatch, capfd)

    def clusters(*argv: str) -> list[str]:
        return sorted(row["cluster"] for row in json.loads(rayhistory.good("sessions", "--json", *argv)))

    assert clusters() == ["other", "sample"]
    assert clusters("--namespace", "team-a") == clusters("oth") == clusters("--cluster", "other") == ["other"]
    assert clusters("--failed") == clusters("sub-ok") == ["sample"]
    assert clusters("--state", "running") == clusters("--since", "1h") == []
    (row,) = json.loads(rayhistory.good("sessions", "--json", "--cluster", "sample"))
    duration = format_duration(row["ended_ms"] - row["started_ms"])  # as the home page shows it
    assert f"  {duration}  " in rayhistory.good("sessions", "--cluster", "sample")
    limited = rayhistory("sessions", "--limit", "1")
    assert limited.err.startswith("1 more sessions not shown\n")
    assert len(limited.out.splitlines()) == 2
    assert rayhistory.good("sessions", "--state", "running") == ""
    assert rayhistory("sessions", "--state", "running").err == "No session matches.\n"
    assert "invalid since" in rayhistory.bad("sessions", "--since", "soon")
    assert "use a number above 0" in rayhistory.bad("sessions", "--limit", "0")
