"""SQL queries of visitors who leave: a query that nobody waits for ends, with its process and its files."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from support.recorded_sample import REF, settings_for, store_indexed_sample
from support.two_namespaces import run_historyserver

ENDLESS = "select count(*) from range(1000000000) a, range(1000000000) b"


def query_processes(server: int) -> list[int]:
    """Return the children of a server that run a query."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return [int(child) for child in children if "sql_process" in command_of(child)]


def command_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def wait_for(server: int, count: int) -> None:
    deadline = time.monotonic() + 25
    while len(query_processes(server)) != count:
        assert time.monotonic() < deadline, f"not {count} processes of queries"
        time.sleep(0.02)


@pytest.mark.slow
def test_query_ends_when_its_visitor_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    store_indexed_sample(settings_for(tmp_path))
    url = f"{REF.url}api/history/sql"
    with run_historyserver(tmp_path, "--sql", "--sql-timeout=10m") as address:
        server = int((tmp_path / "pid").read_text())
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            assert client.post(url, json={"query": "select 1 as one"}).json()["rows"] == [{"one": 1}]
            with ThreadPoolExecutor(1) as pool:
                left = pool.submit(client.post, url, json={"query": ENDLESS}, timeout=httpx.Timeout(60, read=5))
                wait_for(server, 1)
                assert isinstance(left.exception(), httpx.ReadTimeout)
            wait_for(server, 0)
            assert client.post(url, json={"query": "select 2 as two"}).json()["rows"] == [{"two": 2}]
    assert not [path for path in scratch.rglob("*") if path.is_file()]
