"""Search over sessions: only those that the visitor may see, the newest first, page by page."""

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage import open_store
from support.recorded_sample import NODE, settings_for
from support.two_namespaces import ALLOWED_TOKEN, bearer, write_access_file

VISIBLE = [SessionRef.checked("default", "one", f"session_2026-11-1{day}_20-00-00_000000_1") for day in (1, 2, 3)]
HIDDEN = SessionRef.checked("team-x", "vault", "session_2026-11-15_20-00-00_000000_1")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("sessions")
    settings = dataclasses.replace(
        settings_for(directory), auth="token", access_file=write_access_file(directory), index_ahead=False
    )

    async def store_sessions() -> None:
        store, layout = open_store(settings, writable=True), Layout(settings.storage_root_dir)
        for ref in (*VISIBLE, HIDDEN):
            await store.put(layout.metadata_key(ref), b"")
            await store.put(layout.log_key(ref, NODE, "raylet.out"), b"a secret word\n" * 3)
        await store.close()

    (directory / "store").mkdir()
    asyncio.run(store_sessions())
    with TestClient(create_app(settings), headers=bearer(ALLOWED_TOKEN)) as client:
        yield client


def search(client: TestClient, **params: Any) -> dict[str, Any]:
    response = client.get("/api/history/search", params={"q": "word", **params})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def test_only_visible_sessions_are_searched_the_newest_first(client: TestClient) -> None:
    body = search(client)
    sessions = [(hit["namespace"], hit["cluster"], hit["session"]) for hit in body["hits"]]
    assert sessions == [ref.identity for ref in reversed(VISIBLE) for _ in range(3)]
    assert (body["complete"], body["total"], body["next"]) == (True, 9, None)
    assert body["hits"][0]["url"] == f"{VISIBLE[2].url}logs/{NODE}/raylet.out?offset=28&line=3#L3"


def test_pages_continue_within_and_between_sessions(client: TestClient) -> None:
    found, cursor = [], None
    while True:
        body = search(client, limit=2, **({"cursor": cursor} if cursor else {}))
        found += body["hits"]
        cursor = body["next"]
        if cursor is None:
            break
    assert found == search(client)["hits"]


def test_sessions_are_selected_by_namespace_cluster_and_age(client: TestClient) -> None:
    assert search(client, namespace="team-x")["hits"] == []
    assert search(client, cluster="other")["hits"] == []
    assert search(client, since="1h")["hits"] == []
    assert search(client, cluster="one")["total"] == 9


@pytest.mark.parametrize("params", [{"task": "x"}, {"cursor": "x"}, {"since": "x"}, {"q": ""}, {"other": "1"}])
def test_wrong_requests_are_reported(client: TestClient, params: dict[str, str]) -> None:
    response = client.get("/api/history/search", params={"q": "word", **params})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
