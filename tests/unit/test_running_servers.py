"""The servers that this user started on this machine."""

import os
import subprocess
import sys
from pathlib import Path

from rayhistory.running_servers import register_server, registered_servers


def test_server_is_registered_while_it_runs(tmp_path: Path) -> None:
    assert registered_servers(str(tmp_path)) == []
    with register_server(str(tmp_path), 9000, "http"), register_server(str(tmp_path), 9001, "https"):
        os.utime(tmp_path / "servers" / "9000", (1, 1))
        assert registered_servers(str(tmp_path)) == ["https://127.0.0.1:9001", "http://127.0.0.1:9000"]
    assert registered_servers(str(tmp_path)) == []


def test_server_of_a_dead_process_is_not_listed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait()
    (tmp_path / "servers").mkdir()
    (tmp_path / "servers" / "9000").write_text(f"{dead.pid} http")
    assert registered_servers(str(tmp_path)) == []


def test_files_of_dead_processes_are_deleted_and_hide_no_running_server(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait()
    folder = tmp_path / "servers"
    with register_server(str(tmp_path), 9000, "http"):
        os.utime(folder / "9000", (1, 1))
        for port in range(9100, 9120):
            (folder / str(port)).write_text(f"{dead.pid} http")
        (folder / "9200").touch()
        assert registered_servers(str(tmp_path)) == ["http://127.0.0.1:9000"]
        with register_server(str(tmp_path), 9001, "http"):
            assert {path.name for path in folder.iterdir()} == {"9000", "9001", "9200"}


def test_damaged_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "servers").mkdir()
    for name, text in (("x", f"{os.getpid()} http"), ("1", ""), ("2", "x http"), ("3", f"{10**30} http")):
        (tmp_path / "servers" / name).write_text(text)
    assert registered_servers(str(tmp_path)) == []


def test_cache_that_is_not_writable_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with register_server(str(tmp_path / "file"), 9000, "http"):
        assert registered_servers(str(tmp_path / "file")) == []
