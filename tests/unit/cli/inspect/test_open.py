"""`rayhistory open`: the URL of a session on a server that has it."""

import argparse
import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rayhistory.cli.local_ray.run import where_to_look
from support.cli_call import Command
from support.recorded_sample import REF, settings_for, store_sample
from support.server_process import running_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("open")
    store_sample(settings_for(directory))
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[str]:
    with running_server(Path(settings_for(directory).local_storage_dir), directory / "server") as address:
        yield address


@pytest.fixture
def rayhistory(directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(directory, monkeypatch, capfd)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    urls: list[str] = []
    monkeypatch.setattr("webbrowser.open", urls.append)
    return urls


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def port_of(server: str) -> str:
    return server.rpartition(":")[2]


def test_url_is_opened_on_the_given_server(rayhistory: Command, server: str, opened: list[str]) -> None:
    assert rayhistory.good("open", REF.session, "--server", server) == f"{server}{REF.url}\n"
    assert opened == [f"{server}{REF.url}"]


def test_url_is_opened_on_the_server_of_this_machine(rayhistory: Command, server: str, opened: list[str]) -> None:
    assert rayhistory.good("open", "--port", port_of(server)) == f"{server}{REF.url}\n"
    assert opened == [f"{server}{REF.url}"]


def test_recorded_run_has_a_link_that_answers_or_the_command_for_it(
    directory: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rayhistory run` prints this at its end."""
    settings = settings_for(directory)
    monkeypatch.delenv("RAYHISTORY_SERVER", raising=False)
    served = argparse.Namespace(port=int(port_of(server)))
    text = asyncio.run(where_to_look(REF, served, settings))
    assert text == f"Session recorded: {server}{REF.url}\n"
    assert httpx.get(text.split()[-1], timeout=60).status_code == 200
    alone = argparse.Namespace(port=int(free_port()))
    command = f"rayhistory open --serve --port={alone.port} {REF.path}"
    assert asyncio.run(where_to_look(REF, alone, settings)) == f"Session recorded. Open it with: {command}\n"
    monkeypatch.setenv("RAYHISTORY_SERVER", server)
    assert asyncio.run(where_to_look(REF, alone, settings)) == f"Session recorded: {server}{REF.url}\n"


def test_print_opens_nothing(rayhistory: Command, server: str, opened: list[str]) -> None:
    assert rayhistory.good("open", REF.path, "--print", "--port", port_of(server)) == f"{server}{REF.url}\n"
    assert opened == []


def test_serve_uses_a_server_that_has_the_session(rayhistory: Command, server: str, opened: list[str]) -> None:
    done = rayhistory("open", REF.path, "--serve", "--port", port_of(server))
    assert (done.code, done.out, opened) == (0, f"{server}{REF.url}\n", [f"{server}{REF.url}"])
    assert done.err == f"rayhistory: a server at {server} already serves this session, starting no other\n"


def test_nothing_listening_is_an_error(rayhistory: Command, opened: list[str]) -> None:
    port = free_port()
    done = rayhistory("open", REF.path, "--port", port)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"rayhistory: no history server responds at http://127.0.0.1:{port}: "
        f"start one with rayhistory open --serve --port={port} {REF.path}\n"
    )
    assert opened == []


def test_print_with_nothing_listening_prints_no_url_that_does_not_work(rayhistory: Command) -> None:
    done = rayhistory("open", REF.path, "--print", "--port", free_port())
    assert (done.code, done.out) == (1, "")
    assert "no history server responds" in done.err


def test_named_server_that_does_not_respond_is_an_error(rayhistory: Command) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    assert f"{address} does not respond" in rayhistory.bad("open", REF.path, "--server", address)


def test_server_of_another_store_is_an_error(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    other = REF.__class__.checked("default", "other", REF.session)
    store_sample(settings_for(tmp_path), ref=other)
    error = Command(tmp_path, monkeypatch, capfd).bad("open", "--port", port_of(server))
    assert f"the history server at {server} does not have this session" in error


def test_serve_and_server_contradict_each_other(rayhistory: Command, server: str) -> None:
    assert "--serve starts a server on this machine" in rayhistory.bad("open", "--serve", "--server", server)


def test_unknown_session_is_an_error(rayhistory: Command, server: str) -> None:
    assert "the store has no session of default/typo" in rayhistory.bad("open", "default/typo")
    assert "the store has no session of default/typo" in rayhistory.bad("open", "default/typo", "--server", server)
    other = "session_2020-01-01_00-00-00_000000_1"
    assert other in rayhistory.bad("open", f"{REF.namespace}/{REF.cluster}/{other}")


def test_session_is_not_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store_sample(settings_for(tmp_path))
    error = Command(tmp_path, monkeypatch, capfd).bad("open", REF.path, "--print", "--port", free_port())
    assert "no history server responds" in error  # the session was found
    assert not list(Path(settings_for(tmp_path).local_storage_dir).rglob("manifest-*"))


def test_serve_starts_a_server_and_opens_the_session(directory: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    settings = settings_for(directory)
    environment = os.environ | {
        "LOCAL_STORAGE_DIR": settings.local_storage_dir, "RAYHISTORY_CACHE_DIR": settings.cache_dir,
        "BROWSER": str(browser),
    }  # fmt: skip
    command: list[str | Path] = [Path(sys.executable).with_name("rayhistory"), "open", "--serve", "--port", "0"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        output = ""
        while not (found := re.search(rf"^http://\S+{REF.url}$", output, re.MULTILINE)):
            line = process.stdout.readline()
            assert line, output
            output += line
        assert httpx.get(found[0], headers={"Accept": "text/html"}, timeout=60).status_code == 200
        assert (tmp_path / "opened").read_text().strip() == found[0]
        # Other commands find this server, although it does not have the default port.
        again = subprocess.run([*command[:2], "--print"], env=environment, capture_output=True, text=True, check=True)
        assert again.stdout.strip() == found[0]
    finally:
        process.terminate()
        process.wait()
