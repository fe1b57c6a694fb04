"""The head's Grafana dashboards reach the store; links and large files in the job's reach do not."""

import asyncio
import os
from pathlib import Path

from rayhistory.collector.metrics.dashboard_files import DashboardFiles, list_dashboards, read_dashboards
from rayhistory.collector.session.ray_files import READ_BYTES
from rayhistory.collector.telemetry import Telemetry
from rayhistory.metrics.dashboard_bundle import decode_bundle
from rayhistory.storage.local import LocalStore

KEY = "ray-history/metrics/default/test/session/dashboards.json.zst"


def folder(session: Path) -> Path:
    path = session / "metrics/grafana/dashboards"
    path.mkdir(parents=True, exist_ok=True)
    return path


def test_dashboards_are_uploaded_when_they_appear_and_when_they_change(tmp_path: Path) -> None:
    session, store = tmp_path / "session", tmp_path / "store"
    session.mkdir()
    stored = store / KEY

    async def run() -> None:
        files = DashboardFiles(session, LocalStore(store), KEY, Telemetry())
        await files.upload_if_changed()
        assert not stored.exists()
        (folder(session) / "default.json").write_text('{"uid": "one"}')
        await files.upload_if_changed()
        assert decode_bundle(stored.read_bytes()) == [{"uid": "one"}]
        stored.unlink()
        await files.upload_if_changed()
        assert not stored.exists()
        (folder(session) / "default.json").write_text('{"uid": "other"}')
        await files.upload_if_changed()
        assert decode_bundle(stored.read_bytes()) == [{"uid": "other"}]

    asyncio.run(run())


def test_links_pipes_and_large_files_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"uid": "secret"}')
    inside = folder(tmp_path)
    (inside / "good.json").write_text("{}")
    (inside / "link.json").symlink_to(secret)
    (inside / "large.json").write_bytes(bytes(READ_BYTES))
    (inside / "note.txt").write_text("{}")
    os.mkfifo(inside / "pipe.json")
    names = [name for name, _, _ in list_dashboards(tmp_path)]
    assert read_dashboards(tmp_path, names) == {"good.json": b"{}"}


def test_linked_folder_is_not_followed(tmp_path: Path) -> None:
    other = folder(tmp_path / "other")
    (other / "a.json").write_text("{}")
    session = tmp_path / "session"
    (session / "metrics").mkdir(parents=True)
    (session / "metrics/grafana").symlink_to(other.parent)
    assert list_dashboards(session) == []
