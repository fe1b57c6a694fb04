"""The arguments that name a session and a server."""

import argparse

import pytest

from rayhistory.cli.session_args import server_and_session, server_url
from rayhistory.errors import UsageError
from rayhistory.ray_address import SERVER_VARIABLE

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
