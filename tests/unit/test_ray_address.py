"""`rayhistory://` addresses find the server as `rayhistory open` does."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayhistory.ray_address import LOCAL_SERVER, SERVER_VARIABLE, session_url
from rayhistory.running_servers import register_server
from support.recorded_sample import REF, settings_for, store_sample
from support.server_process import running_server


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    monkeypatch.setenv("RAYHISTORY_CACHE_DIR", str(tmp_path))


def test_default_is_the_default_port_of_this_machine() -> None:
    assert session_url("default/demo") == f"{LOCAL_SERVER}/s/default/demo/latest"
    assert session_url("default/demo/session_1") == f"{LOCAL_SERVER}/s/default/demo/session_1"


def test_server_of_the_environment_is_used_without_a_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SERVER_VARIABLE, "http://history:1/")
    with register_server(str(tmp_path), 9, "http"):
        assert (
            session_url("default/~rayjob/nightly/session_1") == "http://history:1/s/default/~rayjob/nightly/session_1"
        )


def test_server_without_an_answer_is_named_if_it_is_the_only_one(tmp_path: Path) -> None:
    with register_server(str(tmp_path), 9, "http"):
        assert session_url("default/no-such-demo") == "http://127.0.0.1:9/s/default/no-such-demo/latest"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    settings = settings_for(tmp_path / "sample")
    store_sample(settings)
    with running_server(Path(settings.local_storage_dir), tmp_path / "server") as address:
        yield address


@pytest.mark.slow
def test_server_on_another_port_that_has_the_session_is_found(server: str, tmp_path: Path) -> None:
    port = int(server.rpartition(":")[2])
    with register_server(str(tmp_path), port, "http"), register_server(str(tmp_path), 9, "http"):
        os.utime(tmp_path / "servers" / str(port), (1, 1))  # another server was started later
        assert session_url(f"{REF.namespace}/{REF.cluster}") == f"{server}/s/{REF.namespace}/{REF.cluster}/latest"
