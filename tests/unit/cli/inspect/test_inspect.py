"""The commands that read a session say the same from the store as from a server."""

import argparse
import csv
import json
import sys
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import duckdb
import msgspec
import pytest

from called import Command
from rayhistory.cli import output, reading
from rayhistory.layout import Layout, StartRecord
from recorded.served import serving
from recorded_sample import NODE, REF, keep_only_node, keep_sample, live_rows, settings_for

TASK = "c2668a65bda616c1ffffffffffffffffffffffff01000000"
WORKER = "worker-d08dbbc3dc8723a409171043cb3c6beeb647c44e3bacd34df892a9a5-01000000-16292"
OUTPUT = b"".join(b"%03d line\n" % i for i in range(40))
FILES = {
    f"{WORKER}.out": OUTPUT,
    f"{WORKER}.err": b"an error\n",
    "job-driver-sub-ok.log": b"driver says 1\n",
    "raylet.out": b"".join(b"raylet %d\n" % number for number in range(2000)) + b"unfinished",
    "events/event_GCS.log": b"{}\n",
    "colour\x9b31m.log": b"",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reading")
    keep_sample(settings_for(directory), FILES)
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[str]:
    with serving(Path(settings_for(directory).local_storage_dir), directory / "server") as address:
        yield address


@pytest.fixture
def rayhistory(directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(directory, monkeypatch, capfd)


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
def test_a_command_says_the_same_from_the_store_and_from_a_server(
    rayhistory: Command, server: str, argv: list[str]
) -> None:
    path = REF.path
    from_store = rayhistory.good(argv[0], path, *argv[1:])
    assert from_store
    assert rayhistory.good(argv[0], path, "--server", server, *argv[1:]) == from_store
    assert rayhistory.good(argv[0], f"{server}{REF.url}", *argv[1:]) == from_store


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
def test_a_session_has_several_names(rayhistory: Command, server: str, name: str | None) -> None:
    """Addresses as browsers have them are among them."""
    assert NODE in rayhistory.good("nodes", *([name.format(server=server)] if name else []))


def test_rows_are_filtered_sorted_and_cut(rayhistory: Command) -> None:
    rows = json.loads(rayhistory.good("tasks", "--where", "state=FAILED", "--where", "type!=DRIVER_TASK", "--json"))
    failed = {
        (row["task_id"], row["attempt_number"]) for row in live_rows("v0_tasks_detail") if row["state"] == "FAILED"
    }
    assert failed <= {(row["task_id"], row["attempt_number"]) for row in rows}
    lines = rayhistory.good("tasks", "--sort=-name", "--columns", "name", "--csv", "--limit", "0").splitlines()[1:]
    names = [name for (name,) in csv.reader(lines) if name]
    assert names == sorted(names, reverse=True)
    assert len(rayhistory.good("tasks", "--limit", "2").splitlines()) == 3
    assert rayhistory.good("tasks", "--where", "name=nobody", "--json") == "[]\n"
    assert rayhistory.good("tasks", "--where", "name=nobody").startswith("TASK_ID")


def test_more_rows_than_one_page_are_fetched_page_by_page(rayhistory: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = rayhistory.good("tasks", "--limit", "0", "--json")
    monkeypatch.setattr("rayhistory.cli.rows.LARGEST_LIMIT", 7)
    assert rayhistory.good("tasks", "--limit", "0", "--json") == everything
    assert json.loads(rayhistory.good("tasks", "--limit", "9", "--json")) == json.loads(everything)[:9]


def test_a_table_that_is_cut_says_so_and_files_are_whole(
    rayhistory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = json.loads(rayhistory.good("tasks", "--json", "--limit", "0"))
    monkeypatch.setattr("rayhistory.cli.rows.DEFAULT_LIMIT", 5)
    shown = rayhistory("tasks")
    assert len(shown.out.splitlines()) == 1 + 5
    assert shown.err.startswith(f"{len(everything) - 5} more rows are not shown: see --limit")
    for argv in (("--limit", "5"), ("--limit", "0"), ("--where", "name=nobody"), ("--json",)):
        assert rayhistory("tasks", *argv).err == ""
    monkeypatch.setattr("rayhistory.cli.rows.DEFAULT_LIMIT", len(everything))
    assert rayhistory("tasks").err == ""
    monkeypatch.setattr("rayhistory.cli.rows.DEFAULT_LIMIT", 5)
    assert json.loads(rayhistory.good("tasks", "--json")) == everything
    assert len(list(csv.reader(rayhistory.good("tasks", "--csv").splitlines()))) >= 1 + len(everything)
    file = tmp_path / "tasks.parquet"
    rayhistory.good("tasks", "--parquet", str(file))
    assert duckdb.sql(f"select count(*) from '{file}'").fetchall() == [(len(everything),)]


def test_rows_become_a_parquet_file_with_types(rayhistory: Command, tmp_path: Path) -> None:
    file = tmp_path / "tasks.parquet"
    rayhistory.good("tasks", "--parquet", str(file), "--limit", "0")
    types = dict(duckdb.sql(f"select column_name, column_type from (describe from '{file}')").fetchall())
    assert (types["task_id"], types["attempt_number"], types["closed_by_history"]) == ("VARCHAR", "BIGINT", "BOOLEAN")
    assert duckdb.sql(f"select count(*) from '{file}'").fetchall()[0][0] == len(
        json.loads(rayhistory.good("tasks", "--json", "--limit", "0"))
    )


def test_no_rows_still_have_columns(rayhistory: Command, tmp_path: Path) -> None:
    """The same, of the same types, as many rows have: also where none of them has a value."""
    nobody = ("--where", "name=nobody")
    heading, *_ = rayhistory.good("tasks", "--csv").splitlines()
    assert rayhistory.good("tasks", "--csv", *nobody) == f"{heading}\n"
    assert rayhistory.good("tasks", "--csv", "--columns", "name, state", *nobody) == "name,state\n"
    described = []
    for file, which in ((tmp_path / "some.parquet", ()), (tmp_path / "none.parquet", nobody)):
        rayhistory.good("tasks", "--parquet", str(file), *which)
        described.append(duckdb.sql(f"select column_name, column_type from (describe from '{file}')").fetchall())
    some, none = described
    assert some == none
    assert ",".join(name for name, _ in some) == heading
    assert ("running_in_ray_get_ns", "BIGINT") in none


def test_rows_on_their_way_into_parquet_do_not_stay_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    arguments = argparse.Namespace(parquet=str(file), json=False, csv=False)
    tracemalloc.start()
    try:
        with output.writer(arguments, ["number", "text"], {"number": "BIGINT"}) as add:
            for number in range(100):
                add([(number, str(number) * 500_000)])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 30_000_000
    assert duckdb.sql(f"select sum(number), sum(length(text)) from '{file}'").fetchall() == [(4950, 95_000_000)]
    assert list(tmp_path.iterdir()) == [file]


def test_a_timeline_is_a_file_for_the_viewers(rayhistory: Command, tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    assert "perfetto" in rayhistory.good("timeline", "-o", str(file), "--job", "01000000")
    assert {event["ph"] for event in json.loads(file.read_bytes())} == {"X", "M"}
    assert "cannot be written" in rayhistory.bad("timeline", "-o", "/nowhere/x")


def test_logs_are_found_by_what_wrote_them(rayhistory: Command) -> None:
    assert rayhistory.good("logs", "--job", "sub-ok") == "driver says 1\n"
    assert rayhistory.good("logs", "--pid", "16292", "--err") == "an error\n"
    assert rayhistory.good("logs", "--pid", "16292").encode() == OUTPUT
    assert "line" in rayhistory.good("logs", "--task", TASK)


def test_lines_are_picked_from_the_end_or_by_a_pattern(rayhistory: Command) -> None:
    assert rayhistory.good("logs", "--file", "raylet.out", "-n", "2") == "raylet 1999\nunfinished"
    assert (
        rayhistory.good("logs", "--file", "raylet.out", "--grep", "9{3}$|unf")
        == "raylet 999\nraylet 1999\nunfinished\n"
    )
    nothing = rayhistory("logs", "--file", "raylet.out", "--grep", "nowhere")
    assert (nothing.code, nothing.out, nothing.err) == (1, "", "")


def test_names_of_files_do_not_steer_the_terminal(rayhistory: Command) -> None:
    listed = rayhistory.good("logs", "--list").splitlines()
    assert "events/event_GCS.log" in listed
    assert not any("\x9b" in name for name in listed)
    assert rayhistory.good("logs", "--list", "raylet*").split() == ["raylet.out"]


def test_a_link_is_printed_or_opened(rayhistory: Command, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(reading.webbrowser, "open", opened.append)
    assert rayhistory.good("open", REF.path, "--print") == f"http://127.0.0.1:8080{REF.url}\n"
    assert opened == []
    assert rayhistory.good("open", REF.session, "--server", server) == f"{server}{REF.url}\n"
    assert opened == [f"{server}{REF.url}"]


def test_a_session_that_is_not_there_has_no_link(rayhistory: Command, server: str) -> None:
    assert "no session of default/typo is in the store" in rayhistory.bad("open", "default/typo", "--print")
    assert "no session of default/typo is in the store" in rayhistory.bad(
        "open", "default/typo", "--print", "--server", server
    )
    other = "session_2020-01-01_00-00-00_000000_1"
    assert other in rayhistory.bad("open", f"{REF.namespace}/{REF.cluster}/{other}", "--print")


def test_a_session_need_not_be_indexed_to_have_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    keep_sample(settings_for(tmp_path))
    assert REF.url in Command(tmp_path, monkeypatch, capfd).good("open", REF.path, "--print")
    assert not list(Path(settings_for(tmp_path).local_storage_dir).rglob("manifest-*"))


class Foreign(BaseHTTPRequestHandler):
    """Answers everything, and is no history server."""

    kind, body, status = "text/html; charset=utf-8", b"<html>Please sign in</html>", 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Type", self.kind)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


class OtherText(Foreign):
    kind, body = "text/plain", b"ok"


class OtherJson(Foreign):
    kind, body = "application/json", b'{"status": "up"}'


class BadGateway(Foreign):
    status = 502


@pytest.mark.parametrize("handler", [Foreign, OtherText, OtherJson, BadGateway])
def test_a_server_of_another_kind_is_told_in_one_line(rayhistory: Command, handler: type[Foreign]) -> None:
    """A sign-in that stands before the server, or a wrong port; also a log must not be what such a page says."""
    commands = [[], [REF.path]]
    argvs = [[name, *session] for name in ("tasks", "logs", "summary", "gaps", "open") for session in commands]
    if handler.kind.startswith("text/html"):
        argvs.append(["logs", REF.path, "--file", "raylet.out"])
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        try:
            for argv in argvs:
                line = rayhistory.bad(*argv, "--server", f"http://127.0.0.1:{other.server_port}")
                assert "no history server" in line or "not as a history server does" in line
        finally:
            other.shutdown()


def test_a_session_that_lacks_nothing_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    keep_only_node(settings_for(tmp_path))
    assert Command(tmp_path, monkeypatch, capfd)("gaps").err == "Nothing is missing.\n"


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["tasks", "nobody"], "not a session: 'nobody'"),
        (["tasks", "a/b"], "no session of a/b is in the store"),
        (["tasks", "a/b/c/d"], "not a session name: 'c'"),
        (["tasks", "session_2020-01-01_00-00-00_000000_1"], "no session 'session_2020-01-01_00-00-00_000000_1' is in"),
        (["tasks", "--where", "colour=red"], "table 'tasks' has no column 'colour'"),
        (["tasks", "--where", "colour"], "not a condition: 'colour'"),
        (["tasks", "--sort", "colour"], "has no column 'colour'"),
        (["tasks", "--columns", "colour"], "has no column 'colour'"),
        (["tasks", "--limit", "-1"], "--limit -1: use 0 or more"),
        (["tasks", "--json", "--csv"], "not allowed with argument"),
        (["tasks", "--server", "there"], "--server=there: use an address such as"),
        (["tasks", "http://there/x"], "not an address of a session"),
        (["tasks", "http://there/s/a/b", "--server", "http://there"], "leave out --server"),
        (["tasks", "--server", "http://127.0.0.1:1"], "http://127.0.0.1:1 does not answer"),
        (["logs", "--file", "../../etc/passwd"], "A file is not found at: ../../etc/passwd"),
        (["logs", "--file", "raylet.out", "--grep", "("], "'(': no regular expression"),
        (["logs", "--file", "raylet.out", "--lines", "0"], "--lines 0: use a number above 0"),
        (["logs", "--node", "nobody", "--file", "x"], "node id: nobody doesn't exist"),
        (["logs", "--task", "0" * 48], "Could not find log file for task"),
        (["logs", "--task", TASK, "--actor", "x"], "not allowed with argument"),
        (["logs", "--file", "raylet.out", "--err"], "--err goes with --task, --actor, --pid"),
        (["logs", "--job", "sub-ok", "--err"], "--err goes with --task, --actor, --pid"),
        (["logs", "--pid", "1", "--attempt", "0"], "--attempt goes with --task"),
        (["logs", "--attempt", "0"], "--attempt goes with --task"),
        (["logs", "--task", "x", "--incarnation", "0"], "--incarnation goes with --actor"),
        (["logs", "--task", TASK, "--node", NODE], "--node goes with --pid, --file, --list"),
        (["logs", "--actor", "x", "--node", NODE], "--node goes with --pid, --file, --list"),
        (["logs", "--job", "sub-ok", "--node", NODE], "--node goes with --pid, --file, --list"),
        (["logs", "--list", "--grep", "x"], "--grep goes with --task, --actor, --job, --pid, --file"),
        (["logs", "--follow"], "--follow goes with --task, --actor, --job, --pid, --file"),
        (["logs", "--list", "*", "-n", "1"], "--lines goes with --task, --actor, --job, --pid, --file"),
        (["timeline"], "required: -o/--output"),
        (["timeline", "-o", "-", "--job", "x"], "'x' is not an id"),
        (["timeline", "-o", "."], ". cannot be written: it is no file"),
        (["timeline", "-o", f"{__file__}/x"], "cannot be written: Not a directory"),
        (["timeline", "-o", "x" * 255], "cannot be written: File name too long"),
        (["tasks", "--parquet", "/"], "/ cannot be written: it is no file"),
        (["tasks", "--parquet", f"{__file__}/x"], "cannot be written: Not a directory"),
        (["tasks", "--parquet", "/nowhere/x"], "cannot be written: No such file or directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_one_line(rayhistory: Command, argv: list[str], complaint: str) -> None:
    assert complaint in rayhistory.bad(*argv)


def test_an_empty_store_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Path(settings_for(tmp_path).local_storage_dir).mkdir()
    assert "the store holds no session yet" in Command(tmp_path, monkeypatch, capfd).bad("tasks")


def test_logs_are_followed_until_the_session_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is written is watched: each piece makes the log grow, and after the third the session ends."""
    settings, layout = settings_for(tmp_path), Layout()
    keep_sample(settings, {"raylet.out": b"one\n"})
    store = Path(settings.local_storage_dir)
    start = store / layout.start_key(REF)
    start.parent.mkdir(parents=True, exist_ok=True)
    start.write_bytes(msgspec.json.encode(StartRecord(REF.namespace, REF.cluster, REF.session, 1)))
    (store / layout.alive_key(REF)).write_bytes(b"")
    for module in ("logfiles", "logflow"):
        monkeypatch.setattr(f"rayhistory.server.{module}.FRESH", 0.0)
    log, end = store / layout.log_key(REF, NODE, "raylet.out"), store / layout.end_key(REF)
    written, write = [], sys.stdout.buffer.write

    class Watched:
        """The terminal."""

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
        "rayhistory.cli.logs.sys.stdout", type("Out", (), {"buffer": Watched(), "flush": Watched.flush})()
    )
    Command(tmp_path, monkeypatch, capfd)("logs", "--file", "raylet.out", "--follow")
    assert b"".join(written) == b"one\nmore\nmore\n"
