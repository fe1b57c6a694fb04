"""A full disk under the cache and the temporary files of a server and of the library.

Each request succeeds or fails with a code. Nothing is damaged: once there is space again, everything is as before.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import rayhistory
from faults.disks import fill_disk, small_disk
from rayhistory.api.history import TableQuery
from rayhistory.errors import DiskFull
from support.recorded_sample import NODE, REF, settings_for, store_indexed_sample
from support.server_process import running_server

FAILING = (
    "rows/tasks.zip", "rows/tasks.zip?superseded=1", "rows/tasks.parquet", "rows/tasks?limit=1000", "rows/actors",
    "diagnosis", "overview",
)  # fmt: skip
SPILLING = "select count(*) from (select i, md5(i::varchar) as m from range(2000000) t(i) order by m)"
PLAIN = "select name, count(*) as n from tasks group by all order by all"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("full-disk")
    store_indexed_sample(settings_for(directory), {"raylet.out": b"one\n"})
    return directory / "store"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small disk for caches and temporary files."""
    with small_disk("16m") as directory:
        if directory is None:
            pytest.skip("cannot mount a small disk here")
        monkeypatch.setenv("TMPDIR", str(directory))
        monkeypatch.setattr("tempfile.tempdir", str(directory))
        yield directory


class Visitor:
    def __init__(self, address: str) -> None:
        self._http = httpx.Client(base_url=address, timeout=60, trust_env=False)

    def get(self, path: str) -> httpx.Response:
        return self._http.get(f"{REF.url}api/history/{path}")

    def sql(self, query: str) -> httpx.Response:
        return self._http.post(f"{REF.url}api/history/sql", json={"query": query})

    def ray(self, path: str) -> httpx.Response:
        return self._http.get(f"{REF.url}{path}")


def rows(response: httpx.Response) -> Any:
    return response.raise_for_status().json()["rows"]


def test_server_reports_a_full_disk_with_a_code_and_recovers(store: Path, disk: Path) -> None:
    with running_server(store, disk / "work", "--sql", "--sql-memory=64Mi", "--rate-limit=0") as address:
        visitor = Visitor(address)
        fill_disk(disk / "filler")
        for path in FAILING:
            response = visitor.get(path)
            assert (response.status_code, response.json()["error"]["code"]) == (507, "disk_full"), path
            assert str(disk) not in response.text
        failed = visitor.ray("api/v0/tasks?detail=1")
        assert (failed.status_code, failed.headers["X-RayHistory-Error"]) == (507, "disk_full")
        assert visitor.sql(PLAIN).json()["error"]["code"] == "disk_full"
        assert visitor.ray(f"api/v0/logs/file?node_id={NODE}&filename=raylet.out").status_code == 200, "needs no file"
        (disk / "filler").unlink()
        assert len(rows(visitor.get("rows/tasks?limit=1000"))) == sum(row["n"] for row in rows(visitor.sql(PLAIN)))
        spilled = visitor.sql(SPILLING).json()["error"]
        assert spilled["code"] in ("disk_full", "invalid_request"), spilled
        for path in FAILING:
            assert visitor.get(path).status_code == 200, path
        assert visitor.ray("api/v0/tasks?detail=1").status_code == 200
    left = [path.name for path in disk.rglob("*") if path.is_file() and path.name.startswith(".")]
    assert not left, "half a copy"


def test_copy_that_fits_in_part_is_no_copy(store: Path, disk: Path) -> None:
    """The last write before a disk is full is a short one, without an error."""
    free = 0
    with running_server(store, disk / "work", "--rate-limit=0") as address:
        visitor = Visitor(address)
        fill_disk(disk / "filler")
        while (response := visitor.get("rows/tasks?limit=1000")).status_code != 200:
            assert response.json()["error"]["code"] == "disk_full", response.text
            free += 4096
            assert free < 1 << 20
            os.truncate(disk / "filler", (disk / "filler").stat().st_size - 4096)
        assert free > 4096
        (disk / "filler").unlink()
        assert rows(visitor.get("rows/tasks?limit=1000")) == rows(response)


def converted(tasks: TableQuery) -> list[dict[str, Any]]:
    return sorted(tasks.to_arrow().to_pylist(), key=repr)


def test_library_reports_a_full_disk_and_recovers(
    store: Path, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYHISTORY_CACHE_DIR", str(tmp_path / "cache"))
    with rayhistory.connect(store) as history:
        run = history.session()
        expected = sorted(run.tasks(), key=repr)
        fill_disk(disk / "filler")
        for tasks in (run.tasks(), run.tasks("state = FAILED")):
            with pytest.raises(DiskFull, match="free some"):
                tasks.to_arrow()
        assert sorted(run.tasks(), key=repr) == expected, "needs no temporary file"
        (disk / "filler").unlink()
        assert converted(run.tasks()) == expected
