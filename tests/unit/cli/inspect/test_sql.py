"""SQL on the tables of one and of many sessions: it reads, and does nothing else."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
import msgspec
import pytest

from called import Command
from rayhistory.layout import Layout, SessionRef, StartRecord
from recorded_sample import REF, keep_sample, live_rows, settings_for

MEASURED = """
import sys, tracemalloc
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
    """The sample, and the same session once more in another cluster."""
    directory = tmp_path_factory.mktemp("sql")
    settings = settings_for(directory)
    keep_sample(settings)
    store = Path(settings.local_storage_dir)
    for path in [path for path in store.rglob("*") if path.is_file()]:
        copy = Path(str(path).replace("sample", "again"))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    return directory


@pytest.fixture
def rayhistory(directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(directory, monkeypatch, capfd)


def test_a_session_is_asked_in_sql(rayhistory: Command) -> None:
    rows = json.loads(rayhistory.good("sql", TASKS, "--session", REF.path, "--json"))
    assert {row["state"] for row in rows} == {"FINISHED", "FAILED"}
    assert sum(row["n"] for row in rows) >= len(live_rows("v0_tasks_detail"))


def test_many_sessions_are_told_apart_by_three_columns(rayhistory: Command) -> None:
    query = "select namespace, cluster, session, count(*) as n from nodes group by all order by all"
    rows = json.loads(rayhistory.good("sql", query, "--all", "--json"))
    assert [(row["namespace"], row["cluster"], row["session"], row["n"]) for row in rows] == [
        ("default", "again", REF.session, 1),
        ("default", "sample", REF.session, 1),
    ]


def test_a_cluster_means_its_newest_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A session is named as for the other commands, and without a name all mean the same: running ones do not count
    for more than newer ones."""
    settings, layout = settings_for(tmp_path), Layout()
    owned = SessionRef.checked("default", "raycluster-x", "session_2026-11-14_00-00-00_000000_1", "rayjob", "nightly")
    newer = SessionRef.checked(REF.namespace, REF.cluster, "session_2026-11-16_00-00-00_000000_1")
    keep_sample(settings)
    keep_sample(settings, ref=owned)
    store = Path(settings.local_storage_dir)
    for key in (layout.metadata_key(newer), layout.start_key(REF), layout.alive_key(REF)):
        (store / key).parent.mkdir(parents=True, exist_ok=True)
        (store / key).touch()
    record = StartRecord(REF.namespace, REF.cluster, REF.session, 1)
    (store / layout.start_key(REF)).write_bytes(msgspec.json.encode(record))
    rayhistory = Command(tmp_path, monkeypatch, capfd)
    nodes = {
        "": 0,
        newer.session: 0,
        f"{REF.namespace}/{REF.cluster}": 0,
        REF.path: 1,
        f"{REF.path}@1794770380000": 1,
        f"{REF.path}@1": 0,
        "default/~rayjob/nightly": 1,
    }
    for name, number in nodes.items():
        rows = rayhistory.good("sql", "select node_id from nodes", "--json", *(["--session", name] if name else []))
        assert (name, len(json.loads(rows))) == (name, number)
        assert len(json.loads(rayhistory.good("nodes", "--json", *([name] if name else [])))) == number
    exported = rayhistory.good("export", f"{REF.namespace}/{REF.cluster}", "--to", str(tmp_path / "exported"))
    assert exported.startswith(newer.path)


def test_sessions_that_began_long_ago_can_be_left_out(rayhistory: Command) -> None:
    assert "no session began so late: give a longer --since" in rayhistory.bad("sql", TASKS, "--all", "--since", "0s")
    query = "select count(*) as n from nodes"
    assert json.loads(rayhistory.good("sql", query, "--all", "--since", "520w", "--json")) == [{"n": 2}]


def test_an_answer_has_the_form_that_is_asked_for(rayhistory: Command, tmp_path: Path) -> None:
    query = "select node_id, is_head, start_time_ms, labels from nodes"
    (row,) = json.loads(rayhistory.good("sql", query, "--session", REF.path, "--json"))
    heading, line = rayhistory.good("sql", query, "--session", REF.path, "--csv").splitlines()
    assert heading == "node_id,is_head,start_time_ms,labels"
    assert line.startswith(f"{row['node_id']},True,{row['start_time_ms']},")
    names, cells = rayhistory.good("sql", query, "--session", REF.path).splitlines()
    assert names.split() == ["NODE_ID", "IS_HEAD", "START_TIME_MS", "LABELS"]
    assert cells.split()[:3] == [row["node_id"], "True", "2026-11-15"]
    file = tmp_path / "out.parquet"
    rayhistory.good("sql", query, "--session", REF.path, "--parquet", str(file))
    assert duckdb.read_parquet(str(file)).fetchall() == [tuple(row.values())]
    assert not list(tmp_path.glob(".*"))


def test_only_moments_are_shown_as_dates(rayhistory: Command) -> None:
    query = """select sum(end_time_ms) as total_ms, 1794770380000 as spent_ms, sum(end_time_ms) * 1000 as end_time_ms,
               max(start_time_ms) as start_time_ms from tasks"""
    (row,) = json.loads(rayhistory.good("sql", query, "--session", REF.path, "--json"))
    _, cells = rayhistory.good("sql", query, "--session", REF.path).splitlines()
    shown = [str(row["total_ms"]), "1794770380000", str(row["end_time_ms"]), "2026-11-15"]
    assert cells.split()[:4] == shown


def test_columns_that_are_called_alike_are_all_there(rayhistory: Command, tmp_path: Path) -> None:
    """Under the same names in every form; what is a time by its name stays one."""
    file = tmp_path / "out.parquet"
    query = "select 1 as a, 2 as a, 3 as A, 4 as a_1, n.start_time_ms, m.start_time_ms from nodes n, nodes m"
    (row,) = json.loads(rayhistory.good("sql", query, "--session", REF.path, "--json"))
    names, began = ["a", "a_1", "A_2", "a_1_1", "start_time_ms", "start_time_ms_1"], row["start_time_ms"]
    assert row == dict(zip(names, [1, 2, 3, 4, began, began], strict=True))
    heading, _ = rayhistory.good("sql", query, "--session", REF.path, "--csv").splitlines()
    assert heading.split(",") == names
    heading, cells = rayhistory.good("sql", query, "--session", REF.path).splitlines()
    assert heading.split() == [name.upper() for name in names]
    assert cells.count("2026-11-15 ") == 2
    rayhistory.good("sql", query, "--session", REF.path, "--parquet", str(file))
    assert duckdb.read_parquet(str(file)).columns == names


def test_large_whole_numbers_stay_exact_in_parquet(rayhistory: Command, tmp_path: Path) -> None:
    file = tmp_path / "it's.parquet"
    query = 'select sum(9007199254740993 + range) as "a ""sum""", 1 as same, 2 as same from range(1)'
    rayhistory.good("sql", query, "--session", REF.path, "--parquet", str(file))
    assert duckdb.read_parquet(str(file)).fetchall() == [(9007199254740993, 1, 2)]


@pytest.mark.usefixtures("rayhistory")
def test_large_rows_are_taken_in_small_portions() -> None:
    """What they need in our own process is not bounded by `--memory`."""
    query = "select repeat('x', 100000) || range as body from range(2000)"
    argv = [sys.executable, "-c", MEASURED, "sql", query, "--session", REF.path, "--json"]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    assert int(done.stderr) < 60_000_000


def test_the_tables_are_listed_and_described(rayhistory: Command) -> None:
    assert "tasks\n" in rayhistory.good("sql", "show tables")
    described = json.loads(rayhistory.good("sql", "describe jobs", "--json"))
    assert {"submission_id", "status"} <= {row["column_name"] for row in described}


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("copy (select 1) to '{folder}/new.csv'", "give one SELECT"),
        ("create table t as select 1", "give one SELECT"),
        ("drop view tasks", "give one SELECT"),
        ("insert into tasks select * from tasks", "give one SELECT"),
        ("delete from tasks", "give one SELECT"),
        ("update tasks set state = 'FINISHED'", "give one SELECT"),
        ("attach '{folder}/new.db'", "give one SELECT"),
        ("install httpfs", "give one SELECT"),
        ("load httpfs", "give one SELECT"),
        ("set enable_external_access = true", "give one SELECT"),
        ("reset lock_configuration", "give one SELECT"),
        ("export database '{folder}/new'", "give one SELECT"),
        ("call enable_logging()", "give one SELECT"),
        ("explain analyze copy (select 1) to '{folder}/new.csv'", "give one SELECT"),
        ("select 1; drop view tasks", "give one SELECT"),
        ("", "give one SELECT"),
        ("selec 1", "this is no SQL"),
        ("select * from read_text('{folder}/secret')", "cannot be read from: there are the tables"),
        ("select * from '{folder}/secret.csv'", "Permission Error"),
        ("select * from read_parquet('{folder}/*.parquet')", "cannot be read from: there are the tables"),
        ("select * from glob('{folder}/*')", "cannot be read from: there are the tables"),
        ("select * from query('from read_text(''{folder}/secret'')')", "query cannot be read from"),
        ("with a as (from READ_TEXT('{folder}/secret')) select * from a", "read_text cannot be read from"),
        ("select (select content from read_text('{folder}/secret'))", "read_text cannot be read from"),
        ("describe from read_csv('{folder}/secret.csv')", "read_csv cannot be read from"),
        ("select * from enable_logging(storage = 'file')", "enable_logging cannot be read from"),
        ("pragma database_list", "give one SELECT"),
        ("select * from settings", "does not exist"),
        ("select nothing from tasks", '"nothing" not found'),
        ("select * from nobody", "nobody does not exist"),
    ],
)  # fmt: skip
def test_what_does_more_than_read_is_refused_in_one_line(
    rayhistory: Command, tmp_path: Path, query: str, complaint: str
) -> None:
    for name in ("secret", "secret.csv", "secret.parquet"):
        (tmp_path / name).write_text("s3cret")
    before = sorted(tmp_path.iterdir())
    line = rayhistory.bad("sql", query.format(folder=tmp_path), "--session", REF.path)
    assert complaint in line
    assert "s3cret" not in line
    assert sorted(tmp_path.iterdir()) == before


def test_functions_that_make_rows_can_be_used(rayhistory: Command) -> None:
    query = "select r.range, n.is_head from range(2) r, nodes n, unnest([1]) order by 1"
    assert len(json.loads(rayhistory.good("sql", query, "--session", REF.path, "--json"))) == 2
    cpus = "select distinct required_resources->>'$.CPU' as cpus from tasks where type = 'NORMAL_TASK'"
    assert {"cpus": "1.0"} in json.loads(rayhistory.good("sql", cpus, "--session", REF.path, "--json"))


def test_variables_of_our_own_program_are_no_tables(rayhistory: Command) -> None:
    assert "does not exist" in rayhistory.bad("sql", "select * from sources", "--session", REF.path)


def test_a_query_without_end_is_stopped(rayhistory: Command) -> None:
    query = "select count(*) from range(1000000000000) a, range(1000000000000) b where (a.range + b.range) % 7 = 3"
    assert "stopped after 0.5s" in rayhistory.bad("sql", query, "--session", REF.path, "--timeout", "500ms")


def test_a_query_that_needs_too_much_memory_is_stopped(rayhistory: Command) -> None:
    query = "select list(range) from range(100000000)"
    assert "are not enough" in rayhistory.bad("sql", query, "--session", REF.path, "--memory", "20M")


def test_an_export_has_every_table(rayhistory: Command, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert "12 tables" in rayhistory.good("export", REF.path, "--to", str(folder))
    states = duckdb.sql(f"select state from '{folder}/tasks.parquet' where type <> 'DRIVER_TASK'").fetchall()
    rows = json.loads(rayhistory.good("sql", TASKS, "--session", REF.path, "--json"))
    assert Counter(state for (state,) in states) == {row["state"]: row["n"] for row in rows}
    assert "already: name another" in rayhistory.bad("export", REF.path, "--to", str(folder))
    assert "is the name of 2 sessions: say" in rayhistory.bad("export", REF.session, "--to", str(folder))


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--since", "7d"], "--since goes with --all"),
        (["--all", "--since", "soon"], "use an age such as"),
        (["--session", "nobody"], "not a session: 'nobody'"),
        (["--session", "default/nobody"], "no session of default/nobody is in the store"),
        (["--session", REF.session], "is the name of 2 sessions: say namespace/cluster/session"),
        (["--session", f"{REF.path}/more"], "not a session"),
        (["--session", f"http://127.0.0.1{REF.url}"], "this command reads the store"),
        (["--timeout", "x"], "use a duration"),
        (["--memory", "x"], "use a size"),
        (["--parquet", "/nowhere/x.parquet"], "/nowhere/x.parquet cannot be written"),
        (["--parquet", "."], ". cannot be written: it is no file"),
        (["--parquet", "/dev/null"], "/dev/null cannot be written: it is no file"),
        (["--parquet", f"{__file__}/x"], "cannot be written: Not a directory"),
    ],
)
def test_a_wrong_flag_is_named(rayhistory: Command, argv: list[str], complaint: str) -> None:
    assert complaint in rayhistory.bad("sql", "select 1", *argv)
