"""Visitors who send SQL at the same time: each is answered, in few processes, and nobody else waits for them."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from support.process_tree import ProcessWatch, children_of
from support.recorded_sample import REF, settings_for, store_indexed_sample
from support.two_namespaces import bearer, run_historyserver

VISITORS = [f"token-of-visitor-{number:02}" for number in range(21)]
SQL_PROCESS = "rayhistory.index.query.sql_process"
SQL = f"{REF.url}api/history/sql"
ENDLESS = "select count(*) from range(1000000000) a, range(1000000000) b"
MAX_PROCESSES = 2
MEMORY = 128 << 20
_WAIT_S = 300.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sql-visitors")
    store_indexed_sample(settings_for(directory))
    names = enumerate(VISITORS)
    (directory / "access").write_text("".join(f"token visitor-{number} {token} default\n" for number, token in names))
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[str]:
    flags = ("--auth=token", f"--access-file={directory / 'access'}", "--sql", f"--sql-memory={MEMORY >> 20}Mi")
    with run_historyserver(directory, *flags, "--sql-timeout=10m", "--rate-limit=0") as address:
        yield address


def pid_of(directory: Path) -> int:
    return int((directory / "pid").read_text())


def ask(server: str, token: str, query: str) -> httpx.Response:
    return httpx.post(server + SQL, json={"query": query}, headers=bearer(token), timeout=_WAIT_S, trust_env=False)


@pytest.mark.slow
def test_twenty_visitors_are_answered_in_two_processes_while_others_read(server: str, directory: Path) -> None:
    *asking, reading = VISITORS
    page = f"{REF.url}api/history/rows/tasks?limit=1"
    answers: list[Future[httpx.Response]]
    with (
        ProcessWatch(pid_of(directory), SQL_PROCESS) as watch,
        httpx.Client(base_url=server, headers=bearer(reading), timeout=_WAIT_S, trust_env=False) as reader,
        ThreadPoolExecutor(len(asking)) as pool,
    ):
        answers = [pool.submit(ask, server, token, f"select {n} as n") for n, token in enumerate(asking)]
        read_meanwhile = 0
        while not all(answer.done() for answer in answers):
            assert reader.get(page).status_code == 200
            read_meanwhile += not all(answer.done() for answer in answers)
            time.sleep(0.05)
    assert [answer.result().json()["rows"] for answer in answers] == [[{"n": n}] for n in range(len(asking))]
    assert 1 <= watch.most_children <= MAX_PROCESSES
    assert watch.most_memory_of_a_child < MEMORY
    assert read_meanwhile >= len(asking), "the others read between the queries"


def mcp_call(query: str) -> dict[str, Any]:
    arguments = {"session": REF.path, "query": query}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "query_sql", "arguments": arguments}}


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body"), [(SQL, {"query": ENDLESS}), ("/mcp", mcp_call(ENDLESS))], ids=["sql", "mcp"])
def test_query_ends_when_its_visitor_leaves(server: str, directory: Path, path: str, body: dict[str, Any]) -> None:
    address = urlsplit(server)
    content = json.dumps(body).encode()
    headers = {"Host": address.netloc, "Content-Type": "application/json", "Content-Length": str(len(content))}
    head = "".join(f"{name}: {value}\r\n" for name, value in (headers | bearer(VISITORS[0])).items())
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content)
        wait_for_processes(directory, 1)
    wait_for_processes(directory, 0)
    assert ask(server, VISITORS[0], "select 1 as one").json()["rows"] == [{"one": 1}]


def wait_for_processes(directory: Path, count: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    while len(children_of(pid_of(directory), SQL_PROCESS)) != count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
