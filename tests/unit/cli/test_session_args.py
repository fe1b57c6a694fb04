"""The arguments that name a session and a server."""

import argparse

import pytest

from rayhistory.cli.session_args import select_sessions, server_and_session, server_url
from rayhistory.errors import UsageError
from rayhistory.ray_address import SERVER_VARIABLE
from rayhistory.sessions import SessionRef
from rayhistory.sessions.catalog import CatalogEntry

SERVER = "http://127.0.0.1:9217"


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)


def arguments(session: str | None = None, server: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(session=session, server=server)


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        (SERVER, (SERVER, "")),
        (f"{SERVER}/", (SERVER, "")),
        (f"{SERVER}/s/default/demo/latest/", (SERVER, "default/demo/latest")),
        (f"{SERVER}/s/default/~rayjob/demo?a=b#c", (SERVER, "default/~rayjob/demo")),
        (f"{SERVER}/below/s/default/demo/latest", (f"{SERVER}/below", "default/demo/latest")),
        ("default/demo/", (None, "default/demo")),
        (None, (None, "")),
    ],
)
def test_session_may_be_a_url_of_a_session_or_of_a_server(
    session: str | None, expected: tuple[str | None, str]
) -> None:
    """The URL of a server alone means its newest session."""
    assert server_and_session(arguments(session)) == expected


@pytest.mark.parametrize(
    ("path", "name"),
    [("/s/default/demo/latest", "default/demo"), ("/s/default/demo/session_1/#/jobs", "default/demo/session_1")],
)
def test_session_url_as_the_server_gets_the_right_call(path: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as raised:
        server_url(arguments(server=SERVER + path))
    assert str(raised.value) == (
        f"--server={SERVER}{path} is the URL of a session, not of a server: use --server={SERVER}, "
        f"and the session {name}"
    )
    monkeypatch.setenv(SERVER_VARIABLE, SERVER + path)
    with pytest.raises(UsageError, match=f"use {SERVER_VARIABLE}={SERVER}, and the session {name}"):
        server_and_session(arguments())


def test_server_may_be_below_a_path() -> None:
    assert server_url(arguments(server="https://gateway/history/")) == "https://gateway/history"


SHORT = "2026-11-15_19-18-08"
NAMES = (f"session_{SHORT}_055078_15551", "session_2026-11-16_00-00-00_000000_1")


def entries() -> list[CatalogEntry]:
    owned = SessionRef("team-a", "nightly-x1", NAMES[0], "rayjob", "nightly")
    refs = [*(SessionRef("default", "demo", name) for name in NAMES), SessionRef("default", "other", NAMES[0]), owned]
    return [CatalogEntry(ref) for ref in refs]


@pytest.mark.parametrize(
    ("name", "selected"),
    [
        ("demo", [0, 1]),
        ("default/demo", [0, 1]),
        ("default/demo/", [0, 1]),
        (NAMES[1], [1]),
        ("2026-11-16_00-00-00", [1]),
        (f"default/demo/{SHORT}", [0]),
        (f"default/demo/{NAMES[0]}", [0]),
        ("team-a/~rayjob/nightly", [3]),
    ],
)
def test_commands_on_several_sessions_take_the_names_of_the_others(name: str, selected: list[int]) -> None:
    listed = entries()
    assert select_sessions(listed, [name]) == [listed[number] for number in selected]


def test_short_name_of_sessions_in_several_clusters_is_refused() -> None:
    with pytest.raises(UsageError, match="matches sessions of 3 clusters: use default/demo or another path"):
        select_sessions(entries(), [SHORT])
    assert len(select_sessions(entries(), [NAMES[0]])) == 3
