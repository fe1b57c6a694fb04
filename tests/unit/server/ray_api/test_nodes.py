"""What Ray's pages take for granted: figures of every node, and an end of what they count the time of."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from rayhistory.layout import EndRecord, Layout, StartRecord
from rayhistory.server.app import create_app
from recorded_sample import NODE, REF, keep_sample, serving, settings_for

BROWSER = {"User-Agent": "Mozilla/5.0"}
MOMENT = 1794770340000
LOOKED_AT = 1794770600000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("pages")) as client:
        yield client


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Of a session that went on there is what a look at it told, as `rayhistory snapshot` keeps it."""
    settings, layout = settings_for(tmp_path_factory.mktemp("looked")), Layout()
    keep_sample(settings)
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


def ends_of_open(client: TestClient, headers: dict[str, str], base: str = "") -> list[set[int]]:
    """When actors that are alive are said to have ended: in the list of all, on their node's page, and on their own."""

    def ask(path: str) -> Any:
        return client.get(base + path, headers=headers).json()["data"]

    listed, on_node = ask("logical/actors")["actors"], ask(f"nodes/{NODE}")["detail"]["actors"]
    alive = [name for name, actor in listed.items() if actor["state"] == "ALIVE"]
    single = {name: ask(f"logical/actors/{name}")["detail"] for name in alive}
    return [{found[name]["endTime"] for name in alive} for found in (listed, on_node, single)]


@pytest.mark.parametrize("node", ["ab" * 28, "f" * 56, "nobody"])
def test_the_page_of_a_node_that_is_not_there_has_all_that_it_reads(client: TestClient, node: str) -> None:
    """An actor that was never placed leads to the node `ffff…`; and before a node joined it was not there."""
    known = client.get(f"nodes/{NODE}").json()["data"]["detail"]
    detail = client.get(f"nodes/{node}").json()["data"]["detail"]
    for field in ("loadAvg", "networkSpeed", "cmdline", "cpus", "cpu", "bootTime", "disk", "gpus", "tpus", "actors"):
        assert type(detail[field]) is type(known[field]), field
    assert [len(detail["loadAvg"]), len(detail["networkSpeed"])] == [2, 2]
    assert (detail["workers"], detail["raylet"]["nodeId"]) == ([], node)


@pytest.mark.parametrize("headers", [BROWSER, {}], ids=["page", "program"])
def test_actors_of_a_node_last_until_the_moment_on_its_page_too(client: TestClient, headers: dict[str, str]) -> None:
    ends = ends_of_open(client, headers, f"http://testserver{REF.url[:-1]}@{MOMENT}/")
    assert ends == [{MOMENT if headers else 0}] * 3


@pytest.mark.parametrize("headers", [BROWSER, {}], ids=["page", "program"])
@pytest.mark.parametrize("base", ["", f"http://testserver{REF.url[:-1]}@{LOOKED_AT + 60_000}/"], ids=["all", "later"])
def test_what_ran_when_a_cluster_was_looked_at_lasts_until_then_on_pages(
    looked_at: TestClient, headers: dict[str, str], base: str
) -> None:
    """And not until today: nobody knows how it went on."""
    assert ends_of_open(looked_at, headers, base) == [{LOOKED_AT if headers else 0}] * 3
