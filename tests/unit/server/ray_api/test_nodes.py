"""Fields that the node pages require: statistics of every node, and an end of open actors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.sessions import EndRecord, Layout, StartRecord
from support.recorded_sample import NODE, REF, serving, settings_for, store_sample

BROWSER = {"User-Agent": "Mozilla/5.0"}
AS_OF_MS = 1794770340000
LOOKED_AT = 1794770600000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("pages")) as client:
        yield client


@pytest.fixture(scope="module")
def snapshot_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Serve a session made by `rayhistory snapshot`: the cluster continued after it."""
    settings, layout = settings_for(tmp_path_factory.mktemp("snapshot")), Layout()
    store_sample(settings)
    started = StartRecord(REF.namespace, REF.cluster, REF.session, 1794770288055)
    for key, record in (
        (layout.start_key(REF), started),
        (layout.end_key(REF), EndRecord(LOOKED_AT, "snapshot", open=True)),
    ):
        file = Path(settings.local_storage_dir) / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(record))
    with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
        yield client


def open_actor_ends(client: TestClient, headers: dict[str, str], base: str = "") -> list[set[int]]:
    """Return the end times of live actors: in the list, on the node page, and on the actor page."""

    def get_data(path: str) -> Any:
        return client.get(base + path, headers=headers).json()["data"]

    listed, on_node = get_data("logical/actors")["actors"], get_data(f"nodes/{NODE}")["detail"]["actors"]
    alive = [name for name, actor in listed.items() if actor["state"] == "ALIVE"]
    single = {name: get_data(f"logical/actors/{name}")["detail"] for name in alive}
    return [{found[name]["endTime"] for name in alive} for found in (listed, on_node, single)]


@pytest.mark.parametrize("node", ["ab" * 28, "f" * 56, "unknown"])
def test_page_of_an_unknown_node_has_all_required_fields(client: TestClient, node: str) -> None:
    """An actor that was never placed links to the node `ffff…`, and a node is unknown before it joined."""
    known = client.get(f"nodes/{NODE}").json()["data"]["detail"]
    detail = client.get(f"nodes/{node}").json()["data"]["detail"]
    for field in ("loadAvg", "networkSpeed", "cmdline", "cpus", "cpu", "bootTime", "disk", "gpus", "tpus", "actors"):
        assert type(detail[field]) is type(known[field]), field
    assert [len(detail["loadAvg"]), len(detail["networkSpeed"])] == [2, 2]
    assert (detail["workers"], detail["raylet"]["nodeId"]) == ([], node)


@pytest.mark.slow
@pytest.mark.parametrize("headers", [BROWSER, {}], ids=["page", "program"])
def test_open_actors_on_the_node_page_end_as_of_the_shown_time(client: TestClient, headers: dict[str, str]) -> None:
    ends = open_actor_ends(client, headers, f"http://testserver{REF.url[:-1]}@{AS_OF_MS}/")
    assert ends == [{AS_OF_MS if headers else 0}] * 3


@pytest.mark.slow
@pytest.mark.parametrize("headers", [BROWSER, {}], ids=["page", "program"])
@pytest.mark.parametrize("base", ["", f"http://testserver{REF.url[:-1]}@{LOOKED_AT + 60_000}/"], ids=["all", "later"])
def test_open_rows_of_a_snapshot_end_at_its_time_on_pages(
    snapshot_client: TestClient, headers: dict[str, str], base: str
) -> None:
    """Their end is unknown, and pages would count until now."""
    assert open_actor_ends(snapshot_client, headers, base) == [{LOOKED_AT if headers else 0}] * 3
