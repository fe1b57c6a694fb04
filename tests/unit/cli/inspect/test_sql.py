"""`rayhistory sql` and `rayhistory export`: read-only queries on one and on many sessions."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
import msgspec
import pytest

from rayhistory.sessions import Layout, SessionRef, StartRecord
from support.cli_call import Command
from support.recorded_sample import REF, live_rows, settings_for, store_indexed_sample, store_sample
from support.server_process import running_server

RUN_AND_PRINT_PEAK_MEMORY = """
import sys, tracemalloc
import rayhistory.cli.inspect.sql
from rayhistory.cli.main import main
tracemalloc.start()
try:
    main()
finally:
    sys.stderr.write(str(tracemalloc.get_traced_memory()[1]))
"""
TASKS = "select state, count(*) as n from tasks where type <> 'DRIVER_TASK' group by all"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample session, and a copy of it in another cluster."""
    directory = tmp_path_factory.mktemp("sql")
    settings = settings_for(directory)
    store_indexed_sample(settings)
    store = Path(settings.local_storage_dir)
    for path in [path for path in store.rglob("*") if path.is_file()]:
        copy = Path(str(path).replace("sample", "again"))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    return directory


@pytest.fixture
def rayhistory(directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(directory, monkeypatch, capfd)


def test_query_runs_on_one_session(rayhistory: Command) -> None:
    rows = json.loads(rayhistory.good("sql", TASKS, "--session", REF.path, "--json"))
    assert {row["state"] for row in rows} == {"FINISHED", "FAILED"}
    assert sum(row["n"] for row in rows) >= len(live_rows("v0_tasks_detail"))


@pytest.mark.slow
def test_query_runs_on_a_server_that_allows_it(rayhistory: Command, directory: Path, tmp_path: Path) -> None:
    on_store = json.loads(rayhistory.good("sql", f"{TASKS} order by all", "--session", REF.path, "--json"))
    store = Path(settings_for(directory).local_storage_dir)
    with running_server(store, tmp_path, "--sql") as address:
        for where in (["--server", address, "--session", REF.path], ["--session", f"{address}{REF.url}"]):
            assert json.loads(rayhistory.good("sql", f"{TASKS} order by all", *where, "--json")) == on_store
        cut = rayhistory("sql", "from range(20000)", "--server", address, "--json")
        assert (cut.code, len(json.loads(cut.out))) == (1, 10_000)
        assert "more rows than the server returns" in cut.err
        assert "--all reads the store" in rayhistory.bad("sql", TASKS, "--server", address, "--all")


@pytest.mark.slow
def test_all_sessions_have_three_identity_columns(rayhistory: Command) -> None:
    query = "select namespace, cluster, session, count(*) as n from nodes group by all order by all"
    rows = json.loads(rayhistory.good("sql", query, "--all", "--json"))
    assert [(row["namespace"], row["cluster"], row["session"], row["n"]) for row in rows] == [
        ("default", "again", REF.session, 1),
        ("default", "sample", REF.session, 1),
    ]


@pytest.mark.slow
def test_cluster_selects_its_newest_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Names resolve as in the other commands. Without a name, a running session wins over a newer one."""
    settings, layout = settings_for(tmp_path), Layout()
    owned = SessionRef.checked("default", "raycluster-x", "session_2026-11-14_00-00-00_000000_1", "rayjob", "nightly")
    newer = SessionRef.checked(REF.namespace, REF.cluster, "session_2026-11-16_00-00-00_000000_1")
    store_sample(settings)
    store_sample(settings, ref=owned)
    store = Path(settings.local_storage_dir)
    for key in (layout.metadata_key(newer), layout.start_key(REF), layout.alive_key(REF)):
        (store / key).parent.mkdir(parents=True, exist_ok=True)
        (store / key).touch()
    record = StartRecord(REF.namespace, REF.cluster, REF.session, 1)
    (store / layout.start_key(REF)).write_bytes(msgspec.json.encode(record))
    rayhistory = Command(tmp_path, monkeypatch, capfd)
    nodes = {
        "": 1,
        newer.session: 0,
        f"{REF.namespace}/{REF.cluster}": 1,
        REF.path: 1,
        f"{REF.path}@1794770380000": 1,
        f"{REF.path}@1": 0,
        "default/~rayjob/nightly": 1,
    }
    for name, count in nodes.items():
        rows = rayhistory.good("sql", "select node_id from nodes", "--json", *(["--session", name] if name else []))
        assert (name, len(json.loads(rows))) == (name, count)
        assert len(json.loads(rayhistory.good("nodes", "--json", *([name] if name else [])))) == count
    exported = rayhistory.good("export", f"{REF.namespace}/{REF.cluster}", "--to", str(tmp_path / "exported"))
    assert exported.startswith(REF.path)


@pytest.mark.slow
def test_since_excludes_older_sessions(rayhistory: Command) -> None:
    assert "no session started within --since: use a longer duration" in rayhistory.bad(
        "sql", TASKS, "--all", "--since", "0s"
    )
    query = "select count(*) as n from nodes"
    assert json.loads(rayhistory.good("sql", query, "--all", "--since", "520w", "--json")) == [{"n": 2}]


def test_output_formats(rayhistory: Command, tmp_path: Path) -> None:
    query = "select node_id, is_head, start_time_ms, labels from nodes"
    (row,) = json.loads(rayhistory.good("sql", query, "--session", REF.path, "--json"))
    heading, line = rayhistory.good("sql", query, "--session", REF.path, "--csv").splitlines()
    assert heading == "node_id,is_head,start_time_ms,labels"
    assert line.startswith(f"{row['node_id']},True,{row['start_time_ms']},")
    names, cells = rayhistory.good("sql", query, "--session", REF.path).splitlines()
    assert names.split() == ["NODE_ID", "IS_HEAD", "START_TIME", "(UTC)", "LABELS"]
    assert cells.split()[:3] == [row["node_id"], "True", "2026-11-15"]
    file = tmp_path / "out.parquet"
    rayhistory.good("sql", query, "--session", REF.path, "--parquet", str(file))
    assert duckdb.read_parquet(str(file)).fetchall() == [tuple(row.values())]
    assert not list(tmp_path.glob(".*"))


def test_only_timestamps_are_shown_as_dates(rayhistory: Command) -> None:
    query = """select sum(end_time_ms) as total_ms, 1794770380000 as spent_ms, sum(end_time_ms) * 1000 as end_time_ms,
               max(start_time_ms) as start_time_ms from tasks"""
    (row,) = json.loads(rayhistory.good("sql", query, "--session", REF.path, "--json"))
    names, cells = rayhistory.good("sql", query, "--session", REF.path).splitlines()
    assert names.split() == ["TOTAL_MS", "SPENT_MS", "END_TIME_MS", "START_TIME", "(UTC)"]
    shown = [str(row["total_ms"]), "1794770380000", str(row["end_time_ms"]), "2026-11-15"]
    assert cells.split()[:4] == shown


def test_repeated_column_names_are_numbered(rayhistory: Command, tmp_path: Path) -> None:
    """In every output format. Timestamp columns are still shown as dates."""
    file = tmp_path / "out.parquet"
    query = "select 1 as a, 2 as a, 3 as A, 4 as a_1, n.start_time_ms, m.start_time_ms from nodes n, nodes m"
    (row,) = json.loads(rayhistory.good("sql", query, "--session", REF.path, "--json"))
    names, started = ["a", "a_1", "A_2", "a_1_1", "start_time_ms", "start_time_ms_1"], row["start_time_ms"]
    assert row == dict(zip(names, [1, 2, 3, 4, started, started], strict=True))
    heading, _ = rayhistory.good("sql", query, "--session", REF.path, "--csv").splitlines()
    assert heading.split(",") == names
    heading, cells = rayhistory.good("sql", query, "--session", REF.path).splitlines()
    assert re.split("  +", heading) == ["A", "A_1", "A_2", "A_1_1", "START_TIME (UTC)", "START_TIME_1 (UTC)"]
    assert cells.count("2026-11-15 ") == 2
    rayhistory.good("sql", query, "--session", REF.path, "--parquet", str(file))
    assert duckdb.read_parquet(str(file)).columns == names


def test_large_integers_are_exact_in_parquet(rayhistory: Command, tmp_path: Path) -> None:
    file = tmp_path / "it's.parquet"
    query = 'select sum(9007199254740993 + range) as "a ""sum""", 1 as same, 2 as same from range(1)'
    rayhistory.good("sql", query, "--session", REF.path, "--parquet", str(file))
    assert duckdb.read_parquet(str(file)).fetchall() == [(9007199254740993, 1, 2)]


@pytest.mark.slow
@pytest.mark.usefixtures("rayhistory")
def test_large_rows_are_fetched_in_small_batches() -> None:
    """`--memory` does not limit the memory of rows in our own process."""
    query = "select repeat('x', 100000) || range as body from range(2000)"
    argv = [sys.executable, "-c", RUN_AND_PRINT_PEAK_MEMORY, "sql", query, "--session", REF.path, "--json"]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    assert int(done.stderr) < 60_000_000


def test_tables_can_be_listed_and_described(rayhistory: Command) -> None:
    assert "tasks\n" in rayhistory.good("sql", "show tables")
    described = json.loads(rayhistory.good("sql", "describe jobs", "--json"))
    assert {"submission_id", "status"} <= {row["column_name"] for row in described}


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("copy (select 1) to '{folder}/new.csv'", "use one SELECT"),
        ("create table t as select 1", "use one SELECT"),
        ("drop view tasks", "use one SELECT"),
        ("insert into tasks select * from tasks", "use one SELECT"),
        ("delete from tasks", "use one SELECT"),
        ("update tasks set state = 'FINISHED'", "use one SELECT"),
        ("attach '{folder}/new.db'", "use one SELECT"),
        ("install httpfs", "use one SELECT"),
        ("load httpfs", "use one SELECT"),
        ("set enable_external_access = true", "use one SELECT"),
        ("reset lock_configuration", "use one SELECT"),
        ("export database '{folder}/new'", "use one SELECT"),
        ("call enable_logging()", "use one SELECT"),
        ("explain analyze copy (select 1) to '{folder}/new.csv'", "use one SELECT"),
        ("select 1; drop view tasks", "use one SELECT"),
        ("", "use one SELECT"),
        ("selec 1", "invalid SQL"),
        ("select * from read_text('{folder}/secret')", "table function not allowed"),
        ("select * from '{folder}/secret.csv'", "Permission Error"),
        ("select * from read_parquet('{folder}/*.parquet')", "table function not allowed"),
        ("select * from glob('{folder}/*')", "table function not allowed"),
        ("select * from query('from read_text(''{folder}/secret'')')", "not allowed: query"),
        ("with a as (from READ_TEXT('{folder}/secret')) select * from a", "not allowed: read_text"),
        ("select (select content from read_text('{folder}/secret'))", "not allowed: read_text"),
        ("describe from read_csv('{folder}/secret.csv')", "not allowed: read_csv"),
        ("select * from enable_logging(storage = 'file')", "not allowed: enable_logging"),
        ("pragma database_list", "use one SELECT"),
        ("select * from settings", "does not exist"),
        ("select nothing from tasks", '"nothing" not found'),
        ("select * from unknown", "table unknown does not exist"),
        ("select * from xyzzy", "table xyzzy does not exist: the tables are actor_transitions, "),
        ("select * from taks", "table taks does not exist: did you mean tasks?"),
        ("with a as (select 1) select * from a, tasks t join Actorz using (actor_id)", "did you mean actors?"),
        ("select * from tasks where job_id in (from job)", "table job does not exist: did you mean jobs?"),
    ],
)  # fmt: skip
def test_query_that_does_more_than_read_is_rejected(
    rayhistory: Command, tmp_path: Path, query: str, error: str
) -> None:
    for name in ("secret", "secret.csv", "secret.parquet"):
        (tmp_path / name).write_text("s3cret")
    before = sorted(tmp_path.iterdir())
    line = rayhistory.bad("sql", query.format(folder=tmp_path), "--session", REF.path)
    assert error in line
    assert "s3cret" not in line
    assert sorted(tmp_path.iterdir()) == before


def test_names_that_a_query_defines_and_tables_of_duckdb_are_found(rayhistory: Command) -> None:
    numbers = "with recursive n(i) as (select 1 union all select i + 1 from N where i < 3)"
    query = f"{numbers} select max(i) as highest from n, duckdb_types"
    assert json.loads(rayhistory.good("sql", query, "--session", REF.path, "--json")) == [{"highest": 3}]


def test_harmless_table_functions_are_allowed(rayhistory: Command) -> None:
    query = "select r.range, n.is_head from range(2) r, nodes n, unnest([1]) order by 1"
    assert len(json.loads(rayhistory.good("sql", query, "--session", REF.path, "--json"))) == 2
    cpus = "select distinct required_resources->>'$.CPU' as cpus from tasks where type = 'NORMAL_TASK'"
    assert {"cpus": "1.0"} in json.loads(rayhistory.good("sql", cpus, "--session", REF.path, "--json"))


def test_python_variables_are_not_tables(rayhistory: Command) -> None:
    assert "does not exist" in rayhistory.bad("sql", "select * from sources", "--session", REF.path)


@pytest.mark.slow
def test_long_query_is_cancelled(rayhistory: Command) -> None:
    query = "select count(*) from range(1000000000000) a, range(1000000000000) b where (a.range + b.range) % 7 = 3"
    assert "query cancelled after 0.5s" in rayhistory.bad("sql", query, "--session", REF.path, "--timeout", "500ms")


def test_query_over_the_memory_limit_fails(rayhistory: Command) -> None:
    query = "select list(range) from range(100000000)"
    assert "query needs more memory than --memory=20000000" in rayhistory.bad(
        "sql", query, "--session", REF.path, "--memory", "20M"
    )


def test_export_writes_every_table(rayhistory: Command, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert "12 tables" in rayhistory.good("export", REF.path, "--to", str(folder))
    states = duckdb.sql(f"select state from '{folder}/tasks.parquet' where type <> 'DRIVER_TASK'").fetchall()
    rows = json.loads(rayhistory.good("sql", TASKS, "--session", REF.path, "--json"))
    assert Counter(state for (state,) in states) == {row["state"]: row["n"] for row in rows}
    assert "already has" in rayhistory.bad("export", REF.path, "--to", str(folder))
    assert "2 sessions are named" in rayhistory.bad("export", REF.session, "--to", str(folder))


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--since", "7d"], "--since requires --all"),
        (["--all", "--since", "soon"], "use an age such as"),
        (["--session", "unknown"], "no session or cluster 'unknown' in the store"),
        (["--session", "default/unknown"], "the store has no session of default/unknown"),
        (["--session", REF.session], "2 sessions are named"),
        (["--session", f"{REF.path}/more"], "invalid session name"),
        (["--session", f"http://127.0.0.1:1{REF.url}"], "does not respond"),
        (["--timeout", "x"], "use a duration"),
        (["--memory", "x"], "use a size"),
        (["--parquet", "/nowhere/x.parquet"], "cannot write /nowhere/x.parquet"),
        (["--parquet", "."], "cannot write .: not a regular file"),
        (["--parquet", "/dev/null"], "cannot write /dev/null: not a regular file"),
        (["--parquet", f"{__file__}/x"], "/x: Not a directory"),
    ],
)
def test_invalid_flags_are_one_line_errors(rayhistory: Command, argv: list[str], error: str) -> None:
    assert error in rayhistory.bad("sql", "select 1", *argv)
