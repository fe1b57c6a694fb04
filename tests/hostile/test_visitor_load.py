"""A visitor with rights to one namespace, whose sessions and requests must not stop the server for the others."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from rayhistory.index.query.query import KEY_COLUMNS
from rayhistory.server.session_routes import SESSION_ROUTES
from support.large_tables import store_large_tables
from support.recorded_sample import REF
from support.two_namespaces import run_historyserver

EVENTS = 200_000
ROWS = 25_000
MAX_GROWTH_BYTES = 150 << 20
_PARAMETERS = {
    "node": ["0" * 56],
    "actor": ["0" * 32],
    "job": ["00000000"],
    "table": list(KEY_COLUMNS),
    "media_type": ["file"],
    "page:path": ["d/x"],
}
_QUERIES = {"/api/history/rows/{table}": ["?limit=10000"], "/nodes": ["", "?view=hostnamelist"]}
_LONG_LISTS = re.compile(r"/api/v0/\w+")


def request_paths() -> Iterator[str]:
    """Yield at least one request for every route below a session, and all rows where a list has a limit."""
    for route in SESSION_ROUTES:
        if not isinstance(route, Route):
            continue
        names = re.findall(r"{([\w:]+)}", route.path)
        queries = ["?limit=20000&detail=1"] if _LONG_LISTS.fullmatch(route.path) else [""]
        for values in product(*(_PARAMETERS[name] for name in names)):
            path = route.path
            for name, value in zip(names, values, strict=True):
                path = path.replace(f"{{{name}}}", value)
            yield from (path.lstrip("/") + query for query in _QUERIES.get(route.path, queries))


def peak_memory(directory: Path) -> int:
    status = Path(f"/proc/{(directory / 'pid').read_text()}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.slow
def test_no_route_needs_memory_for_all_rows_of_a_long_list(tmp_path: Path) -> None:
    """200,000 event lines took 820 MiB; other lists, of nodes, jobs or actors, grew as well."""
    store_large_tables(tmp_path, ROWS, EVENTS)
    with (
        run_historyserver(tmp_path) as address,
        httpx.Client(base_url=address + REF.url, timeout=300, trust_env=False) as client,
    ):
        client.get("api/v0/tasks?limit=10").raise_for_status()
        before, grown = peak_memory(tmp_path), {}
        for path in request_paths():
            with client.stream("GET", path) as response:
                for _ in response.iter_raw():
                    pass
            assert response.status_code < 500 or path.startswith("api/v0/logs"), (path, response.status_code)
            grown[path] = (peak_memory(tmp_path) - before) >> 20
    assert max(grown.values()) < MAX_GROWTH_BYTES >> 20, f"MiB more after each request: {grown}"
