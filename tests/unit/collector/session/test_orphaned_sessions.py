"""Logs of sessions that ended before the collector started are stored once, under their own node ids."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from rayhistory.collector.session import orphaned_sessions
from rayhistory.collector.session.orphaned_sessions import OrphanedSessionShipper
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.logs.source import object_logs
from rayhistory.sessions import SessionRef
from support.log_shipping import HANG, LAYOUT, NODE, SESSION, LogNode, background, run_on_node


def make_old(directory: Path) -> None:
    for path in directory.rglob("*"):
        os.utime(path, (time.time() - 3600, time.time() - 3600))


def orphan_shipper(
    node: LogNode, active_sessions: dict[str, str | None] | None = None, **settings: str
) -> OrphanedSessionShipper:
    return OrphanedSessionShipper(
        node.settings(**settings),
        node.store,
        LAYOUT,
        node.telemetry,
        spool=PrivateDirectory(node.home / "spool"),
        starts=node.starts,
        ref_of=lambda session: SessionRef("default", "test", session),
        active_sessions=lambda: active_sessions or {},
    )


def test_ended_session_is_stored_once_under_its_own_node_id(tmp_path: Path) -> None:
    """The id is in port files, or at the start of the raylet's log, which may have been rotated."""

    async def work(node: LogNode) -> None:
        other_session = "session_2026-11-14_00-00-00_000000_1"
        node.append("raylet.out", "x\n")
        (node.logs.parent / f"metrics_export_port_{NODE}").touch()
        other_logs = node.ray_tmp_root / other_session / "logs"
        other_logs.mkdir(parents=True)
        (other_logs / "raylet.out").write_text("later\n")
        (other_logs / "raylet.1.out").write_text(f"[I] Raylet of id, {'ef' * 28} started. \n")
        make_old(node.ray_tmp_root)
        await orphan_shipper(node, role="Head").ship_all()
        assert await node.packed_files() == {"raylet.out": "x\n"}
        other_ref = SessionRef("default", "test", other_session)
        files = await object_logs(node.store, LAYOUT, other_ref)[0].files("ef" * 28)
        assert sorted(file.path for file in files) == ["raylet.1.out", "raylet.out"]
        assert f"cluster-metadata/raycluster/default_test/{SESSION}" in node.store.puts
        puts = len(node.store.puts)
        await orphan_shipper(node, role="Head").ship_all()
        assert len(node.store.puts) == puts

    run_on_node(tmp_path, work)


def test_prev_logs_of_kuberay_are_stored_and_moved(tmp_path: Path) -> None:
    """With any session name, and then to where KubeRay's collector puts what it has stored."""

    async def work(node: LogNode) -> None:
        for session in (SESSION, "not-a-session"):
            moved = node.ray_tmp_root / "prev-logs" / session / NODE / "logs"
            moved.mkdir(parents=True)
            (moved / "a.log").write_text(f"moved {session}\n")
        (node.ray_tmp_root / "prev-logs" / "bad name" / "x" / "logs").mkdir(parents=True)
        make_old(node.ray_tmp_root)
        await orphan_shipper(node, role="Head").ship_all()
        assert await node.packed_files() == {"a.log": f"moved {SESSION}\n"}
        for session in (SESSION, "not-a-session"):
            key = LAYOUT.log_key(SessionRef("default", "test", session), NODE, "a.log")
            assert await node.store.get(key) == f"moved {session}\n".encode()
            complete = node.ray_tmp_root / "persist-complete-logs" / session / NODE / "logs" / "a.log"
            assert complete.read_text() == f"moved {session}\n"
        assert [path.name for path in (node.ray_tmp_root / "prev-logs").iterdir()] == ["bad name"]
        assert [key for key in node.store.puts if key.startswith("cluster-metadata/")] == [
            f"cluster-metadata/raycluster/default_test/{SESSION}"
        ]

    run_on_node(tmp_path, work)


def test_prev_logs_stay_until_they_are_stored(tmp_path: Path) -> None:
    async def work(node: LogNode) -> None:
        moved = node.ray_tmp_root / "prev-logs" / SESSION / NODE / "logs"
        moved.mkdir(parents=True)
        (moved / "a.log").write_text("moved\n")
        make_old(node.ray_tmp_root)
        node.store.faults = [HANG]
        async with background(orphan_shipper(node).ship_all()):
            await asyncio.sleep(0.2)
        assert (moved / "a.log").exists()
        await orphan_shipper(node).ship_all()
        assert not moved.exists()

    run_on_node(tmp_path, work)


@pytest.mark.parametrize("link", ["persist-complete-logs", f"persist-complete-logs/{SESSION}"])
def test_move_of_prev_logs_follows_no_link(tmp_path: Path, link: str) -> None:
    """Jobs can write to Ray's temporary directory, and must not choose where the collector writes."""

    async def work(node: LogNode) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        moved = node.ray_tmp_root / "prev-logs" / SESSION / NODE / "logs"
        moved.mkdir(parents=True)
        (moved / "a.log").write_text("moved\n")
        (node.ray_tmp_root / link).parent.mkdir(exist_ok=True)
        make_old(node.ray_tmp_root)
        (node.ray_tmp_root / link).symlink_to(elsewhere)
        await orphan_shipper(node).ship_all()
        assert await node.packed_files() == {"a.log": "moved\n"}
        assert list(elsewhere.iterdir()) == []
        assert moved.exists()

    run_on_node(tmp_path, work)


def test_recent_and_active_sessions_are_not_shipped(tmp_path: Path) -> None:
    """A starting session has no raylet yet, but recent files."""

    async def work(node: LogNode) -> None:
        node.append("raylet.out", "x\n")
        await orphan_shipper(node).ship_all()
        make_old(node.ray_tmp_root)
        await orphan_shipper(node, {SESSION: NODE}).ship_all()
        assert node.store.puts == []

    run_on_node(tmp_path, work)


def test_session_that_turns_out_to_be_alive_is_released(tmp_path: Path) -> None:
    async def work(node: LogNode) -> None:
        node.append("raylet.out", "x\n")
        make_old(node.ray_tmp_root)
        node.store.faults = [HANG]
        shipper = orphan_shipper(node)
        async with background(shipper.ship_all()) as shipping:
            await asyncio.sleep(0.2)
            shipper.release(SESSION)
            await asyncio.wait_for(shipping, 5)
        assert node.store.puts == []
        assert not (node.home / "spool" / orphaned_sessions._MARKS_FOLDER).exists()

    run_on_node(tmp_path, work)


def test_session_of_a_killed_collector_is_finished(tmp_path: Path) -> None:
    """Only the missing bytes are sent."""

    async def work(node: LogNode) -> None:
        node.append("raylet.out", "x" * 100_000)
        await node.pack_shipper().flush()
        node.append("raylet.out", "end\n")
        (node.logs.parent / f"metrics_export_port_{NODE}").touch()
        make_old(node.ray_tmp_root)
        await orphan_shipper(node, log_layout="packs").ship_all()
        assert await node.packed_files() == {"raylet.out": "x" * 100_000 + "end\n"}
        assert len(node.store.puts) == 2

    run_on_node(tmp_path, work)
