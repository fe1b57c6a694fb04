"""`rayhistory env`: the URL to which Ray sends events."""

from pathlib import Path

import pytest

from support.cli_call import Command


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capfd)


@pytest.mark.parametrize(
    ("given", "exported"),
    [
        ("http://127.0.0.1:9384", "http://127.0.0.1:9384/v1/events"),
        ("https://collector.example:8443/", "https://collector.example:8443/v1/events"),
        ("http://[::1]:9384", "http://[::1]:9384/v1/events"),
        ("http://127.0.0.1:9384/v1/events", "http://127.0.0.1:9384/v1/events"),
        ("http://gateway/collectors/a/v1/events", "http://gateway/collectors/a/v1/events"),
    ],
)
def test_events_url_gets_the_path_of_the_collector(command: Command, given: str, exported: str) -> None:
    text = command.good("env", "--ray-version", "2.60.0", "--events-url", given)
    assert f"_EVENTS_EXPORT_ADDR={exported}\n" in text.replace("'", "")


@pytest.mark.parametrize(
    "given",
    ["9384", "", "127.0.0.1:9384", "localhost", "ftp://a:1", "http://", "http://a:x", "http://a:99999", "http://["],
)
def test_invalid_events_url_is_refused(command: Command, given: str) -> None:
    done = command("env", "--ray-version", "2.60.0", f"--events-url={given}")
    assert (done.code, done.out) == (2, "")
    assert f"argument --events-url: {given!r}: " in done.err
