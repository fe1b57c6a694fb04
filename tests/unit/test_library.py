"""The Python library, on a store and on a server: the same results from both."""

import asyncio
import html
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import httpx
import polars
import pyarrow
import pytest
from starlette.routing import BaseRoute, Mount, Route

import rayhistory
from rayhistory.api.history import History, Session
from rayhistory.api.in_process import InProcessTransport
from rayhistory.api.rows import RowList
from rayhistory.errors import ServerOutdated, SessionNotFound, UsageError
from rayhistory.server.app import create_app
from rayhistory.sessions import Layout, SessionRef
from support import folding
from support.recorded_sample import NODE, REF, live_rows, settings_for, store_indexed_sample, store_sample
from support.server_process import running_server
from support.stored_metrics import samples, store_object

AS_OF = "2026-11-15T19:19:00Z"
SAMPLED_MS = 1_794_770_300_000
TABLES = ("tasks", "actors", "jobs", "nodes", "workers", "placement_groups")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("library")
    store_indexed_sample(settings_for(directory), {"raylet.out": b"one\ntwo\n"})
    tasks = samples({("ray_tasks", (("State", "FINISHED"),)): [float(n) for n in range(8)]}, SAMPLED_MS)
    store_object(directory / "store", NODE, tasks, SAMPLED_MS, REF)
    return directory


@pytest.fixture(scope="module")
def histories(directory: Path) -> Iterator[dict[str, History]]:
    """The same history, read from the store and from a server."""
    with (
        pytest.MonkeyPatch.context() as patch,
        running_server(directory / "store", directory / "server", "--sql") as address,
    ):
        patch.setenv("RAYHISTORY_CACHE_DIR", str(directory / "library-cache"))
        with rayhistory.connect(directory / "store") as store, rayhistory.connect(address) as server:
            yield {"store": store, "server": server}


@pytest.fixture(params=["store", "server"])
def history(request: pytest.FixtureRequest, histories: dict[str, History]) -> History:
    return histories[request.param]


@pytest.fixture
def session(history: History) -> Session:
    return history.session(f"{REF.namespace}/{REF.cluster}")


def everything(history: History) -> dict[str, Any]:
    """Return what every function of the library returns."""
    run = history.session()
    whole: dict[str, Any] = {table: sorted(getattr(run, table)(), key=repr) for table in TABLES}
    converted = {
        f"{table} as Arrow": sorted(getattr(run, table)().to_arrow().to_pylist(), key=repr) for table in TABLES
    }
    selected = run.tasks("state = FAILED and name ~ o", columns="name,error_type", sort="-name", limit=3)
    return whole | converted | {
        "sessions": history.sessions().to_list(), "session": run.name, "runs": history.runs().to_list(),
        "overview": run.overview(), "gaps": run.gaps(), "diagnosis": run.diagnose(),
        "selected": selected.to_arrow().to_pylist(), "count": len(selected),
        "sql": run.sql("select name, count(*) as n from tasks group by all order by all").to_list(),
        "files": run.logs.files(NODE), "log": run.logs.read(node_id=NODE, filename="raylet.out"),
        "search": run.logs.search("TWO").to_list(), "search of all": history.search("two").to_list(),
        "metrics": run.metrics("sum by (State) (ray_tasks)").to_list(), "compared": history.compare(run, run.name),
        "as of": history.session(f"{run.name}@{AS_OF}").tasks().to_arrow().num_rows,
    }  # fmt: skip


@pytest.mark.slow
def test_store_and_server_give_equal_results(histories: dict[str, History]) -> None:
    store, server = everything(histories["store"]), everything(histories["server"])
    for name, found in store.items():
        assert found, name
        assert found == server[name], name
    for table in TABLES:
        assert store[f"{table} as Arrow"] == store[table]


def test_sessions_are_listed_with_their_names(history: History) -> None:
    (row,) = history.sessions()
    assert (row["namespace"], row["cluster"], row["session"]) == (REF.namespace, REF.cluster, REF.session)
    assert REF.session in history.sessions()._repr_html_()


@pytest.mark.parametrize("name", ["", REF.session, f"{REF.namespace}/{REF.cluster}", REF.path, f"/s/{REF.path}/"])
def test_session_is_found_by_any_of_its_names(history: History, name: str) -> None:
    assert len(history.session(name).tasks()) == len(history.session().tasks())


@pytest.mark.slow
def test_newest_session_of_a_ray_job_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYHISTORY_CACHE_DIR", str(tmp_path / "cache"))
    for day in (14, 15):
        name = f"session_2026-11-{day}_00-00-00_000000_1"
        store_sample(settings_for(tmp_path), ref=SessionRef.checked("default", f"c-{day}", name, "rayjob", "nightly"))
    with rayhistory.connect(tmp_path / "store") as history:
        newest = history.session("default/~rayjob/nightly")
        assert "_2026-11-15_" in newest.name
        assert len(newest.tasks()) > 0


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
    for table in TABLES:
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


@pytest.fixture
def grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of a session that was indexed while it ran: later parts of its index replace rows of earlier ones."""
    monkeypatch.setenv("RAYHISTORY_CACHE_DIR", str(tmp_path / "cache"))
    store = tmp_path / "store"
    for step in range(3):
        folding.put(store, step, folding.as_lines(folding.RECORDED[step::3]))
        manifest = folding.fold_session(store, None)
    assert any(part.superseded for part in manifest.parts)
    marker = store / Layout().metadata_key(folding.REF)
    marker.parent.mkdir(parents=True)
    marker.touch()
    return store


def damage_tasks(directory: Path) -> int:
    """Overwrite the pages of all files of tasks, whose sizes and footers stay; return the number of files."""
    files = list(directory.rglob("tasks.*.parquet"))
    for file in files:
        data = file.read_bytes()
        file.write_bytes(data[:4] + b"\xff" * (len(data) // 3) + data[4 + len(data) // 3 :])
    return len(files)


@pytest.mark.slow
def test_session_indexed_while_it_ran_converts_to_the_rows_that_are_valid(grown: Path, tmp_path: Path) -> None:
    with rayhistory.connect(grown) as history:
        tasks = history.session().tasks()
        expected = sorted(tasks, key=repr)
        assert sorted(tasks.to_arrow().to_pylist(), key=repr) == expected
        assert damage_tasks(tmp_path / "cache") > 1
        assert sorted(tasks.to_arrow().to_pylist(), key=repr) == expected, "damaged copies are fetched again"
        assert damage_tasks(grown) > 1
        shutil.rmtree(tmp_path / "cache")
        assert sorted(tasks.to_arrow().to_pylist(), key=repr) == expected, "damaged parts are built again"


def test_logs_are_listed_and_read(session: Session) -> None:
    assert "raylet.out" in session.logs.files(NODE)
    assert session.logs.read(node_id=NODE, filename="raylet.out") == "one\ntwo\n"


def test_sessions_diagnoses_and_comparisons_show_tables_in_a_notebook(history: History, session: Session) -> None:
    assert session.overview()["state"] == "ended"
    shown = session._repr_html_()
    assert f'href="{session.url}"' in shown
    assert "<table>" in shown
    assert session.diagnose()["verdict"]["headline"] in html.unescape(session.diagnose()._repr_html_())
    assert REF.session in history.compare(session, session)._repr_html_()


def test_sql_returns_rows_up_to_a_limit(histories: dict[str, History]) -> None:
    session = histories["store"].session()
    rows = session.sql("select state, count(*) as n from tasks group by all")
    assert sum(row["n"] for row in rows) == len(session.tasks())
    assert list(rows.to_arrow().column_names) == ["state", "n"]
    assert not session.sql("select * from range(10)", limit=3).complete


class OlderServer:
    """A history server without the routes of a later release."""

    LATER = ("zip", "diagnosis", "search", "sql", "prometheus", "compare", "runs")

    def __init__(self, directory: Path) -> None:
        self._app = create_app(settings_for(directory))
        (sessions,) = (route for route in self._app.routes if isinstance(route, Mount) and route.path == "/s")
        for router in (self._app.router, sessions.app._routes.app):  # type: ignore[attr-defined]
            router.routes[:] = [route for route in router.routes if not self._is_later(route)]

    def _is_later(self, route: BaseRoute) -> bool:
        return isinstance(route, Route) and any(name in route.path for name in self.LATER)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = InProcessTransport(self._app)
        async with (
            self._app.router.lifespan_context(self._app),
            httpx.AsyncClient(base_url="http://older", transport=transport) as http,
        ):
            yield http


def test_older_server_serves_what_it_has_and_is_named_otherwise(directory: Path, histories: dict[str, History]) -> None:
    with History(OlderServer(directory).open, "an older server") as history:
        run = history.session()
        assert run.tasks().to_arrow().num_rows == len(histories["store"].session().tasks())
        for call in (
            run.diagnose, partial(run.logs.search, "x"), partial(run.metrics, "up"), partial(run.sql, "select 1"),
            partial(history.compare, run, run), history.runs, partial(history.search, "x"),
        ):  # fmt: skip
            with pytest.raises(ServerOutdated, match="older than this client"):
                call()


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


@pytest.mark.slow
def test_library_needs_neither_ray_nor_data_frames(directory: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['ray', 'pandas', 'polars', 'pyarrow'])); import rayhistory; "
        "run = rayhistory.connect(sys.argv[1]).session(); table = run.tasks().to_arrow(); "
        "assert table.num_rows == len(run.tasks()) > 0; assert run.diagnose(); print(table.num_rows)"
    )
    command = [sys.executable, "-c", code, str(directory / "store")]
    environment = os.environ | {"RAYHISTORY_CACHE_DIR": str(directory / "bare-cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
