"""The Python library, on a store and on a server: the same results from both."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow
import pytest

import rayhistory
from rayhistory.api.history import History, Session
from rayhistory.api.rows import RowList
from rayhistory.errors import RayHistoryError, SessionNotFound, UsageError
from support.recorded_sample import NODE, REF, live_rows, settings_for, store_indexed_sample
from support.server_process import running_server

AS_OF = "2026-11-15T19:19:00Z"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("library")
    store_indexed_sample(settings_for(directory), {"raylet.out": b"one\ntwo\n"})
    return directory


@pytest.fixture(scope="module", params=["store", "server"])
def history(request: pytest.FixtureRequest, directory: Path) -> Iterator[History]:
    store = Path(settings_for(directory).local_storage_dir)
    if request.param == "store":
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAYHISTORY_CACHE_DIR", str(directory / "library-cache"))
            with rayhistory.connect(store) as history:
                yield history
        return
    with running_server(store, directory / "server") as address, rayhistory.connect(address) as history:
        yield history


@pytest.fixture(scope="module")
def session(history: History) -> Session:
    return history.session(f"{REF.namespace}/{REF.cluster}")


def test_sessions_are_listed_with_their_names(history: History) -> None:
    (row,) = history.sessions()
    assert (row["namespace"], row["cluster"], row["session"]) == (REF.namespace, REF.cluster, REF.session)
    assert REF.session in history.sessions()._repr_html_()


@pytest.mark.parametrize("name", ["", REF.session, f"{REF.namespace}/{REF.cluster}", REF.path, f"/s/{REF.path}/"])
def test_session_is_found_by_any_of_its_names(history: History, name: str) -> None:
    assert len(history.session(name).tasks()) == len(history.session().tasks())


def test_session_as_of_a_time_has_only_what_was_known_then(history: History, session: Session) -> None:
    for name in (f"{REF.namespace}/{REF.cluster}@{AS_OF}", f"{REF.session}@{AS_OF}"):
        assert 0 < len(history.session(name).tasks()) < len(session.tasks())


def test_unknown_session_is_an_error_with_the_closest_name(history: History) -> None:
    with pytest.raises(SessionNotFound, match=f"did you mean {REF.session}"):
        history.session(REF.session[:-1] + "9")
    with pytest.raises(UsageError):
        history.session("default/no-such-cluster")


def test_rows_are_selected_by_a_condition(session: Session) -> None:
    failed = session.tasks(where="state = 'FAILED' and (name ~ o or name ~ a)", columns="name,state", sort="-name")
    rows = failed.to_list()
    assert rows
    assert {row["state"] for row in rows} == {"FAILED"}
    assert [row["name"] for row in rows] == sorted((row["name"] for row in rows), reverse=True)
    assert len(failed) == len(rows)
    assert len(session.tasks(where="state = FAILED", limit=1).to_list()) == 1


def test_all_tables_have_a_method(session: Session) -> None:
    for table in ("tasks", "actors", "jobs", "nodes", "workers", "placement_groups"):
        assert len(getattr(session, table)()) > 0, table
    assert {row["task_id"] for row in session.tasks()} >= {row["task_id"] for row in live_rows("v0_tasks_detail")}


def test_rows_convert_to_arrow_pandas_and_polars(session: Session) -> None:
    tasks = session.tasks(columns="task_id,attempt_number,state,start_time_ms")
    expected = tasks.to_list()
    table = tasks.to_arrow()
    assert table.num_rows == len(expected)
    assert list(table.column_names) == ["task_id", "attempt_number", "state", "start_time_ms"]
    [(count,)] = duckdb.sql("SELECT count(*) FROM tasks WHERE attempt_number >= 0").fetchall()
    assert count == len(expected)
    assert pyarrow.table(tasks).num_rows == polars.DataFrame(tasks).height == len(expected)
    for frame in (tasks.to_pandas(), tasks.to_polars()):
        assert sorted(frame["task_id"].to_list()) == sorted(row["task_id"] for row in expected)


def test_converted_rows_have_the_sort_and_limit_of_the_query(session: Session) -> None:
    tasks = session.tasks("state = FAILED", columns="name,start_time_ms", sort="-start_time_ms,name", limit=5)
    rows = tasks.to_list()
    assert len(rows) == 5
    assert tasks.to_polars().to_dicts() == rows


def test_logs_are_listed_and_read(session: Session) -> None:
    assert "raylet.out" in session.logs.files(NODE)
    assert session.logs.read(node_id=NODE, filename="raylet.out") == "one\ntwo\n"


def test_overview_and_gaps_are_documents(session: Session) -> None:
    assert session.overview()["state"] == "ended"
    assert session.gaps()["gaps"]
    assert "<table>" in session._repr_html_()


def test_sql_runs_where_it_is_allowed(history: History, session: Session) -> None:
    query = "select state, count(*) as n from tasks group by all"
    if "http" in repr(history):  # a server needs --sql
        with pytest.raises(RayHistoryError, match="--sql"):
            session.sql(query)
        return
    rows = session.sql(query)
    assert sum(row["n"] for row in rows) == len(session.tasks())
    assert list(rows.to_arrow().column_names) == ["state", "n"]
    assert not session.sql("select * from range(10)", limit=3).complete


def test_library_works_where_an_event_loop_runs(session: Session) -> None:
    async def in_a_notebook() -> int:
        return len(session.tasks())

    assert asyncio.run(in_a_notebook()) > 0


def test_wrong_sources_and_filters_are_usage_errors(session: Session, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no directory"):
        rayhistory.connect(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no column"):
        session.tasks(where="colour = red").to_list()


def test_html_of_a_result_is_text_never_markup() -> None:
    hostile: list[dict[str, Any]] = [{"<script>": "<img src=x onerror=alert(1)>"}]
    shown = RowList(hostile)._repr_html_()
    assert "<script>" not in shown
    assert "<img" not in shown


def test_importing_the_package_loads_neither_duckdb_nor_the_server() -> None:
    code = (
        "import sys, rayhistory; assert callable(rayhistory.get_job_submission_client_cluster_info); "
        "assert not {'duckdb', 'httpx', 'starlette', 'arro3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
