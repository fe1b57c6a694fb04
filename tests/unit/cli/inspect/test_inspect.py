"""Inspect commands, from the store and from a server."""

import argparse
import csv
import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import duckdb
import msgspec
import pytest

from rayhistory.cli import output
from rayhistory.sessions import Layout, StartRecord
from support.cli_call import Command
from support.recorded_sample import (
    NODE,
    REF,
    live_rows,
    settings_for,
    store_indexed_sample,
    store_only_node,
    store_sample,
)
from support.server_process import running_server

UNKNOWN = "so jobs and failures are unknown. To index, run: rayhistory index --missing"
TASK = "c2668a65bda616c1ffffffffffffffffffffffff01000000"
WORKER = "worker-d08dbbc3dc8723a409171043cb3c6beeb647c44e3bacd34df892a9a5-01000000-16292"
OUTPUT = b"".join(b"%03d line\n" % i for i in range(40))
FILES = {
    f"{WORKER}.out": OUTPUT,
    f"{WORKER}.err": b"an error\n",
    "job-driver-sub-ok.log": b"driver output 1\n",
    "raylet.out": b"".join(b"raylet %d\n" % number for number in range(2000)) + b"unfinished",
    "events/event_GCS.log": b"{}\n",
    "colour\x9b31m.log": b"",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reading")
    settings = settings_for(directory)
    store_indexed_sample(settings, FILES)
    # The index is that of the sample without these files: extend it now, and not while two outputs are compared.
    command: list[str | Path] = [
        Path(sys.executable).with_name("rayhistory"),
        "index",
        "--store",
        f"file://{settings.local_storage_dir}",
    ]
    subprocess.run([*command, "--cache-dir", settings.cache_dir], check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[str]:
    with running_server(Path(settings_for(directory).local_storage_dir), directory / "server") as address:
        yield address


@pytest.fixture
def rayhistory(directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(directory, monkeypatch, capfd)


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        ["tasks", "--limit", "0", "--json"],
        ["tasks", "--where", "state=FAILED", "--sort=-start_time_ms", "--columns", "name,state", "--csv"],
        ["actors"],
        ["jobs", "--json"],
        ["nodes"],
        ["workers", "--csv"],
        ["placement-groups", "--json"],
        ["summary"],
        ["summary", "--of", "actors", "--json"],
        ["gaps", "--json"],
        ["timeline", "-o", "-"],
        ["logs"],
        ["logs", "--file", "raylet.out"],
        ["logs", "--node", NODE, "--file", "raylet.out", "--lines", "3"],
        ["logs", "--job", "sub-ok", "--follow"],
    ],
)
def test_output_is_the_same_from_store_and_server(rayhistory: Command, server: str, argv: list[str]) -> None:
    path = REF.path
    from_store = rayhistory.good(argv[0], path, *argv[1:])
    assert from_store
    assert rayhistory.good(argv[0], path, "--server", server, *argv[1:]) == from_store
    assert rayhistory.good(argv[0], f"{server}{REF.url}", *argv[1:]) == from_store


@pytest.mark.slow
@pytest.mark.parametrize(
    "filters", [(), ("--failed",), ("sub-ok", "--limit", "1"), ("--cluster", "other"), ("--sort=-failed", "--json")]
)
def test_sessions_are_the_same_from_store_and_server(
    rayhistory: Command, server: str, filters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from_store = rayhistory("sessions", *filters)
    assert from_store.out or from_store.err == "No session matches.\n"
    assert rayhistory("sessions", "--server", server, *filters) == from_store
    monkeypatch.setenv("RAYHISTORY_SERVER", server)
    assert rayhistory("sessions", *filters) == from_store


def test_failed_sessions_name_the_command_that_indexes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings, command = settings_for(tmp_path), Command(tmp_path, monkeypatch, capfd)
    store_sample(settings)
    flag = f"--store=file://{settings.local_storage_dir}"
    for arguments in (("--failed",), ()):
        assert f"1 session not indexed, {UNKNOWN} {flag}\n" in command("sessions", flag, *arguments).err
    assert json.loads(command.good("sessions", flag, "--failed", "--json")) == []
    command.good("index", "--missing", flag)
    done = command("sessions", flag, "--failed")
    assert REF.session in done.out
    assert done.err == ""


@pytest.mark.parametrize("command", [("sessions",), ("tasks",), ("logs", "--list"), ("diagnose",), ("metrics", "up")])
def test_commands_ask_the_server_of_the_environment(
    rayhistory: Command, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYHISTORY_SERVER", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1 does not respond" in rayhistory.bad(*command)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        None,
        REF.session,
        f"{REF.namespace}/{REF.cluster}",
        f"{REF.path}@1794770380000",
        f"{{server}}{REF.url}#/jobs",
        f"{{server}}{REF.url}?dashboard=2.60.0#/jobs",
        f"{{server}}/s/{REF.path}@2026-11-15T19%3A19%3A40Z/",
    ],
)
def test_session_can_be_named_in_several_ways(rayhistory: Command, server: str, name: str | None) -> None:
    """By URLs as copied from a browser, too."""
    assert NODE in rayhistory.good("nodes", *([name.format(server=server)] if name else []))


def test_rows_are_filtered_sorted_and_limited(rayhistory: Command) -> None:
    rows = json.loads(rayhistory.good("tasks", "--where", "state=FAILED", "--where", "type!=DRIVER_TASK", "--json"))
    failed = {
        (row["task_id"], row["attempt_number"]) for row in live_rows("v0_tasks_detail") if row["state"] == "FAILED"
    }
    assert failed <= {(row["task_id"], row["attempt_number"]) for row in rows}
    lines = rayhistory.good("tasks", "--sort=-name", "--columns", "name", "--csv", "--limit", "0").splitlines()[1:]
    names = [name for (name,) in csv.reader(lines) if name]
    assert names == sorted(names, reverse=True)
    assert len(rayhistory.good("tasks", "--limit", "2").splitlines()) == 3
    assert rayhistory.good("tasks", "--where", "name=unknown", "--json") == "[]\n"
    assert rayhistory.good("tasks", "--where", "name=unknown").startswith("TASK_ID")


def test_many_rows_are_fetched_page_by_page(rayhistory: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    full_list = rayhistory.good("tasks", "--limit", "0", "--json")
    monkeypatch.setattr("rayhistory.cli.inspect.table_commands.MAX_LIMIT", 7)
    assert rayhistory.good("tasks", "--limit", "0", "--json") == full_list
    assert json.loads(rayhistory.good("tasks", "--limit", "9", "--json")) == json.loads(full_list)[:9]


@pytest.mark.slow
def test_text_output_reports_omitted_rows_and_files_have_all(
    rayhistory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_list = json.loads(rayhistory.good("tasks", "--json", "--limit", "0"))
    monkeypatch.setattr("rayhistory.cli.inspect.table_commands.DEFAULT_LIMIT", 5)
    shown = rayhistory("tasks")
    assert len(shown.out.splitlines()) == 1 + 5
    assert shown.err.startswith(f"{len(full_list) - 5} more rows not shown: use --limit")
    for argv in (("--limit", "5"), ("--limit", "0"), ("--json",)):
        assert rayhistory("tasks", *argv).err == ""
    assert rayhistory("tasks", "--where", "name=unknown").err == "No task matches.\n"
    monkeypatch.setattr("rayhistory.cli.inspect.table_commands.DEFAULT_LIMIT", len(full_list))
    assert rayhistory("tasks").err == ""
    monkeypatch.setattr("rayhistory.cli.inspect.table_commands.DEFAULT_LIMIT", 5)
    assert json.loads(rayhistory.good("tasks", "--json")) == full_list
    assert len(list(csv.reader(rayhistory.good("tasks", "--csv").splitlines()))) >= 1 + len(full_list)
    file = tmp_path / "tasks.parquet"
    rayhistory.good("tasks", "--parquet", str(file))
    assert duckdb.sql(f"select count(*) from '{file}'").fetchall() == [(len(full_list),)]


def test_parquet_file_has_types(rayhistory: Command, tmp_path: Path) -> None:
    file = tmp_path / "tasks.parquet"
    rayhistory.good("tasks", "--parquet", str(file), "--limit", "0")
    types = dict(duckdb.sql(f"select column_name, column_type from (describe from '{file}')").fetchall())
    assert (types["task_id"], types["attempt_number"], types["closed_by_history"]) == ("VARCHAR", "BIGINT", "BOOLEAN")
    assert duckdb.sql(f"select count(*) from '{file}'").fetchall()[0][0] == len(
        json.loads(rayhistory.good("tasks", "--json", "--limit", "0"))
    )


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
def test_misspelled_state_gets_a_hint_beside_the_empty_result(rayhistory: Command, form: tuple[str, ...]) -> None:
    misspelled = rayhistory("tasks", REF.path, "--where", "state=FALED", *form)
    assert (misspelled.code, misspelled.err) == (0, "rayhistory: state=FALED matches no row: did you mean FAILED?\n")
    other = rayhistory("tasks", REF.path, "--where", "state=PENDING_ARGS_FETCH", *form)
    assert (other.code, other.out) == (0, misspelled.out)
    assert other.err == ("" if form else "No task matches.\n")  # programs get an empty list


@pytest.mark.slow
def test_empty_result_has_the_same_columns_and_types(rayhistory: Command, tmp_path: Path) -> None:
    """Also for columns that are always NULL."""
    unknown = ("--where", "name=unknown")
    heading, *_ = rayhistory.good("tasks", "--csv").splitlines()
    assert rayhistory.good("tasks", "--csv", *unknown) == f"{heading}\n"
    assert rayhistory.good("tasks", "--csv", "--columns", "name, state", *unknown) == "name,state\n"
    described = []
    for file, which in ((tmp_path / "some.parquet", ()), (tmp_path / "none.parquet", unknown)):
        rayhistory.good("tasks", "--parquet", str(file), *which)
        described.append(duckdb.sql(f"select column_name, column_type from (describe from '{file}')").fetchall())
    some, none = described
    assert some == none
    assert ",".join(name for name, _ in some) == heading
    assert ("running_in_ray_get_ns", "BIGINT") in none


def test_csv_cells_are_no_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs choose names and messages, and people open the file in a spreadsheet."""
    arguments = argparse.Namespace(parquet=None, json=False, csv=True)
    values = ("=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "\tx", "plain", -5, 1.5, None, ["=1"])
    with output.row_writer(arguments, ["value"], {}) as add:
        add([(value,) for value in values])
    cells = [cell for (cell,) in csv.reader(io.StringIO(capsys.readouterr().out, newline=""))][1:]
    assert cells == ["'=HYPERLINK(1)", "'+1", "'-1", "'@SUM(1)", "'\tx", "plain", "-5", "1.5", "", '["=1"]']


@pytest.mark.slow
def test_parquet_output_does_not_hold_all_rows_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    arguments = argparse.Namespace(parquet=str(file), json=False, csv=False)
    tracemalloc.start()
    try:
        with output.row_writer(arguments, ["number", "text"], {"number": "BIGINT"}) as add:
            for number in range(100):
                add([(number, str(number) * 500_000)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30_000_000
    assert duckdb.sql(f"select sum(number), sum(length(text)) from '{file}'").fetchall() == [(4950, 95_000_000)]
    assert list(tmp_path.iterdir()) == [file]


def test_timeline_is_a_chrome_trace(rayhistory: Command, tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    assert "perfetto" in rayhistory.good("timeline", "-o", str(file), "--job", "01000000")
    assert {event["ph"] for event in json.loads(file.read_bytes())} == {"X", "M"}
    assert "cannot write /nowhere/x" in rayhistory.bad("timeline", "-o", "/nowhere/x")


def test_logs_are_found_by_job_process_and_task(rayhistory: Command) -> None:
    assert rayhistory.good("logs", "--job", "sub-ok") == "driver output 1\n"
    assert rayhistory.good("logs", "--pid", "16292", "--err") == "an error\n"
    assert rayhistory.good("logs", "--pid", "16292").encode() == OUTPUT
    assert "line" in rayhistory.good("logs", "--task", TASK)


def test_log_lines_are_selected_by_number_and_pattern(rayhistory: Command) -> None:
    assert rayhistory.good("logs", "--file", "raylet.out", "-n", "2") == "raylet 1999\nunfinished"
    assert (
        rayhistory.good("logs", "--file", "raylet.out", "--grep", "9{3}$|unf")
        == "raylet 999\nraylet 1999\nunfinished\n"
    )
    nothing = rayhistory("logs", "--file", "raylet.out", "--grep", "nowhere")
    assert (nothing.code, nothing.out, nothing.err) == (1, "", "")


def test_missing_file_gets_similar_names_and_the_next_step(rayhistory: Command) -> None:
    error = rayhistory.bad("logs", "--file", "raylet.log")
    assert "no log file 'raylet.log' on the head node; --node selects another. Did you mean raylet.out" in error
    assert "List files with rayhistory logs --list" in rayhistory.bad("logs", "--file", "nope")


def test_file_names_have_no_control_characters(rayhistory: Command) -> None:
    listed = rayhistory.good("logs", "--list").splitlines()
    assert "events/event_GCS.log" in listed
    assert not any("\x9b" in name for name in listed)
    assert rayhistory.good("logs", "--list", "raylet*").split() == ["raylet.out"]


class SignInPage(BaseHTTPRequestHandler):
    """Replies to every request, but is not a history server."""

    kind, body, status = "text/html; charset=utf-8", b"<html>Please sign in</html>", 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Type", self.kind)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


class OtherText(SignInPage):
    kind, body = "text/plain", b"ok"


class OtherJson(SignInPage):
    kind, body = "application/json", b'{"status": "up"}'


class BadGateway(SignInPage):
    status = 502


@pytest.mark.slow
@pytest.mark.parametrize("handler", [SignInPage, OtherText, OtherJson, BadGateway])
def test_other_server_is_reported_in_one_line(rayhistory: Command, handler: type[SignInPage]) -> None:
    """A sign-in page in front of the server, or a wrong port. Such a page must not be shown as a log."""
    commands = [[], [REF.path]]
    argvs = [[name, *session] for name in ("tasks", "logs", "summary", "gaps", "open") for session in commands]
    if handler.kind.startswith("text/html"):
        argvs.append(["logs", REF.path, "--file", "raylet.out"])
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        Thread(target=other.serve_forever, args=(0.02,), daemon=True).start()
        try:
            for argv in argvs:
                line = rayhistory.bad(*argv, "--server", f"http://127.0.0.1:{other.server_port}")
                assert "is not a history server" in line
        finally:
            other.shutdown()


@pytest.mark.slow
def test_gaps_reports_a_complete_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store_only_node(settings_for(tmp_path))
    assert Command(tmp_path, monkeypatch, capfd)("gaps").err.startswith("The session is complete.")


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["tasks", "unknown"], "no session or cluster 'unknown' in the store"),
        (["diagnose", "unknown"], "no session or cluster 'unknown' in the store"),
        (["tasks", "a/b"], "the store has no session of a/b"),
        (["tasks", "a/b/c/d"], "invalid session name: 'c'"),
        (["tasks", "session_2020-01-01_00-00-00_000000_1"], "no session 'session_2020-01-01_00-00-00_000000_1' in"),
        (["tasks", "--where", "colour=red"], "table 'tasks' has no column 'colour'"),
        (["jobs", "--where", "state=FAILED"], "has no column 'state': did you mean status? Columns: type, "),
        (["tasks", "--where", "colour"], "invalid filter 'colour'"),
        (["tasks", "--sort", "colour"], "has no column 'colour'"),
        (["tasks", "--columns", "colour"], "has no column 'colour'"),
        (["tasks", "--limit", "-1"], "--limit=-1: use 0 or more"),
        (["tasks", "--json", "--csv"], "not allowed with argument"),
        (["tasks", "--server", "there"], "--server=there: use a URL such as"),
        (["mcp", "--server", "there"], "--server=there: use a URL such as"),
        (["tasks", "http://there/x"], "not the URL of a session"),
        (["tasks", "http://there/s/a/b", "--server", "http://there"], "omit --server"),
        (["tasks", "--server", "http://127.0.0.1:1"], "http://127.0.0.1:1 does not respond"),
        (["logs", "--file", "../../etc/passwd"], "no log file '../../etc/passwd' on the head node"),
        (["logs", "--file", "raylet.out", "--grep", "("], "'(': invalid regular expression"),
        (["logs", "--file", "raylet.out", "--lines", "0"], "--lines=0: use a number above 0"),
        (["logs", "--node", "unknown", "--file", "x"], "node id: unknown doesn't exist"),
        (["logs", "--task", "0" * 48], "Could not find log file for task"),
        (["logs", "--task", TASK, "--actor", "x"], "not allowed with argument"),
        (["logs", "--file", "raylet.out", "--err"], "--err requires --task, --actor or --pid"),
        (["logs", "--job", "sub-ok", "--err"], "--err requires --task, --actor or --pid"),
        (["logs", "--pid", "1", "--attempt", "0"], "--attempt requires --task"),
        (["logs", "--attempt", "0"], "--attempt requires --task"),
        (["logs", "--task", "x", "--incarnation", "0"], "--incarnation requires --actor"),
        (["logs", "--task", TASK, "--node", NODE], "--node requires --pid, --file or --list"),
        (["logs", "--actor", "x", "--node", NODE], "--node requires --pid, --file or --list"),
        (["logs", "--job", "sub-ok", "--node", NODE], "--node requires --pid, --file or --list"),
        (["grep", "x", "--since", "1d"], "--since requires --all"),
        (["logs", "--follow"], "--follow requires --task, --actor, --job, --pid or --file"),
        (["logs", "--list", "*", "-n", "1"], "--lines requires --task, --actor, --job, --pid or --file"),
        (["timeline"], "required: -o/--output"),
        (["timeline", "-o", "-", "--job", "x"], "the session has no job 'x'"),
        (["timeline", "-o", "."], "cannot write .: not a regular file"),
        (["timeline", "-o", f"{__file__}/x"], "/x: Not a directory"),
        (["timeline", "-o", "x" * 255], "xxx: File name too long"),
        (["tasks", "--parquet", "/"], "cannot write /: not a regular file"),
        (["tasks", "--parquet", f"{__file__}/x"], "/x: Not a directory"),
        (["tasks", "--parquet", "/nowhere/x"], "cannot write /nowhere/x: No such file or directory"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_one_line_errors(rayhistory: Command, argv: list[str], error: str) -> None:
    assert error in rayhistory.bad(*argv)


def test_empty_store_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Path(settings_for(tmp_path).local_storage_dir).mkdir()
    command = Command(tmp_path, monkeypatch, capfd)
    for name in ("tasks", "diagnose", "sql"):
        arguments = ("select 1", "--all") if name == "sql" else ()
        assert "the store has no sessions yet: record one with rayhistory run" in command.bad(name, *arguments)


@pytest.mark.slow
def test_logs_are_followed_until_the_session_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each output makes the log grow; after the third the session ends."""
    settings, layout = settings_for(tmp_path), Layout()
    store_sample(settings, {"raylet.out": b"one\n"})
    store = Path(settings.local_storage_dir)
    start = store / layout.start_key(REF)
    start.parent.mkdir(parents=True, exist_ok=True)
    start.write_bytes(msgspec.json.encode(StartRecord(REF.namespace, REF.cluster, REF.session, 1)))
    (store / layout.alive_key(REF)).write_bytes(b"")
    for module in ("logs.source", "server.logs.follow"):
        monkeypatch.setattr(f"rayhistory.{module}.LISTING_TTL_S", 0.0)
    log, end = store / layout.log_key(REF, NODE, "raylet.out"), store / layout.end_key(REF)
    written, write = [], sys.stdout.buffer.write

    class Terminal:
        def write(self, data: bytes) -> int:
            written.append(data)
            if len(written) < 3:
                log.write_bytes(log.read_bytes() + b"more\n")
            else:
                end.write_bytes(b'{"ended_ms": 1}')
            return write(data)

        def flush(self) -> None:
            pass

    monkeypatch.setattr(
        "rayhistory.cli.inspect.logs.sys.stdout", type("Out", (), {"buffer": Terminal(), "flush": Terminal.flush})()
    )
    Command(tmp_path, monkeypatch, capfd)("logs", "--file", "raylet.out", "--follow")
    assert b"".join(written) == b"one\nmore\nmore\n"
