"""A writer of one prefix: whoever holds the bucket credential of one namespace's collectors."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.sessions import SessionRef
from support.head_double import HeadDouble
from support.kubernetes_double import run_app
from support.live_server import serve_in_kubernetes
from support.two_namespaces import ALLOWED_TOKEN, bearer, serve_two_namespaces, store_live_session, write_access_file

VICTIM = SessionRef.checked("team-x", "victim", "session_2026-11-16_00-00-00_000000_1")
FORGED = SessionRef.checked("default", "forged", VICTIM.session)
"""The visitor may see `default`, and registers the head and the session name of `team-x` there."""
TASKS = "/s/default/forged/live/api/v0/tasks"


@pytest.fixture
def victim() -> Iterator[tuple[HeadDouble, str]]:
    head = HeadDouble(VICTIM.session)
    with run_app(head.app()) as address:
        yield head, address


def tasks(client: TestClient) -> Any:
    return client.get(TASKS, headers=bearer(ALLOWED_TOKEN)).json()


def test_registered_address_is_never_used_where_kubernetes_is_watched(
    tmp_path: Path, victim: tuple[HeadDouble, str]
) -> None:
    head, address = victim
    store_live_session(tmp_path, address, FORGED)
    settings: dict[str, Any] = {"auth": "token", "access_file": write_access_file(tmp_path)}
    with serve_in_kubernetes(tmp_path, HeadDouble("any"), "head", **settings) as (client, _):
        assert "live" not in tasks(client)
    assert head.requests == []


def test_registered_address_outside_of_the_networks_is_never_used(
    tmp_path: Path, victim: tuple[HeadDouble, str], caplog: pytest.LogCaptureFixture
) -> None:
    head, address = victim
    store_live_session(tmp_path, address, FORGED)
    settings: dict[str, Any] = {"auth": "token", "access_file": write_access_file(tmp_path)}
    with serve_two_namespaces(tmp_path, live=True, live_networks=("10.1.0.0/16",), **settings) as client:
        assert "live" not in tasks(client)
    assert head.requests == []
    assert [record.__dict__["address"] for record in caplog.records if "--live-networks" in record.msg] == [address]


def test_session_name_of_another_namespace_is_not_believed(tmp_path: Path, victim: tuple[HeadDouble, str]) -> None:
    """Both heads are in the operator's networks, and the dashboard confirms the name: the name was copied."""
    head, address = victim
    store_live_session(tmp_path, address, VICTIM)
    store_live_session(tmp_path, address, FORGED)
    settings: dict[str, Any] = {"auth": "token", "access_file": write_access_file(tmp_path)}
    with serve_two_namespaces(tmp_path, live=True, **settings) as client:
        assert "live" not in tasks(client)
    assert head.requests == []


def test_name_is_resolved_once_for_requests_and_websockets(
    tmp_path: Path, victim: tuple[HeadDouble, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is loopback when it is checked, and another machine afterwards (DNS rebinding)."""
    _, address = victim
    lookups: list[str] = []
    resolve = socket.getaddrinfo

    def rebind(host: Any, *args: Any, **options: Any) -> Any:
        if host != "rebind.test":
            return resolve(host, *args, **options)
        lookups.append(host)
        return resolve("127.0.0.1" if len(lookups) == 1 else "192.0.2.1", *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebind)
    store_live_session(tmp_path, address.replace("127.0.0.1", "rebind.test"), FORGED)
    with serve_two_namespaces(tmp_path, live=True) as client:
        assert tasks(client)["live"]
        received = client.get("/s/default/forged/live/events").json()
        assert received["host"] == address.replace("http://127.0.0.1", "rebind.test")
        with client.websocket_connect("/s/default/forged/live/api/jobs/x/logs/tail") as follower:
            assert follower.receive_text() == "one\n"
    assert lookups == ["rebind.test"]
