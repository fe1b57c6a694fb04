"""The node id is found in files, events or the head's dashboard, in the documented order."""

import asyncio
import os
from pathlib import Path

import pytest

from rayhistory.collector.session import node_id
from rayhistory.collector.session.node_id import NodeIdFinder, find_node_id, find_node_id_by_ip, placeholder_node_id
from rayhistory.sessions.kuberay_keys import is_node_folder
from rayhistory.settings import Settings
from support.dashboard_double import run_dashboard

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODES = ["a" * 56, "b" * 56, "c" * 56]
RAYLET_LINE = "[2026] main.cc:1: Raylet of id, {} started. Raylet consists of …\n"


@pytest.fixture
def session(tmp_path: Path) -> Path:
    directory = tmp_path / SESSION
    (directory / "logs").mkdir(parents=True)
    return directory


# Files


def test_newest_port_file_wins(session: Path) -> None:
    """A restarted raylet has written new ones."""
    for age, node in enumerate(reversed(NODES)):
        path = session / f"metrics_export_port_{node}"
        path.write_text("1")
        os.utime(path, (1000 - age, 1000 - age))
    assert find_node_id(session) == NODES[-1]


def test_last_line_of_the_raylet_log_is_used_before_ray_2_54(tmp_path: Path, session: Path) -> None:
    (session / "logs" / "raylet.out").write_text("".join(RAYLET_LINE.format(node) for node in NODES))
    assert find_node_id(session, tmp_path) == NODES[-1]


def test_log_with_the_inode_of_a_removed_one_is_read_from_its_start(tmp_path: Path, session: Path) -> None:
    log = session / "logs" / "raylet.out"
    log.write_text(RAYLET_LINE.format(NODES[0]) + "a line\n" * 100)
    assert find_node_id(session, tmp_path) == NODES[0]
    log.write_text(RAYLET_LINE.format(NODES[1]) + "a line\n" * 1000)  # the same inode
    assert find_node_id(session, tmp_path) == NODES[1]


def test_restarted_raylet_is_found_anywhere_in_its_logs(tmp_path: Path, session: Path) -> None:
    """In the middle of a long file that grows, and in a file that was rotated meanwhile."""
    filler = "x" * 79 + "\n"
    log = session / "logs" / "raylet.out"
    log.write_text(RAYLET_LINE.format(NODES[0]) + filler * 50_000)
    assert find_node_id(session, tmp_path) == NODES[0]
    for _ in range(2):  # first with the saved position, then from the start
        with log.open("a") as file:
            file.write(RAYLET_LINE.format(NODES[1]) + filler * 50_000)
        assert find_node_id(session, tmp_path) == NODES[1]
        log.replace(log.with_name("raylet.0.out"))
        log.write_bytes(log.with_name("raylet.0.out").read_bytes())
        log.with_name("raylet.0.out").unlink()
    log.replace(log.with_name("raylet.1.out"))
    log.write_text("[2026] nothing of interest\n")
    assert find_node_id(session, tmp_path) == NODES[1]
    log.write_text(RAYLET_LINE.format(NODES[2]))
    assert find_node_id(session, tmp_path) == NODES[2]


def test_hook_file_of_older_setups_is_used_last(tmp_path: Path, session: Path) -> None:
    """It is read again at each check, because a restarted raylet has a new id."""
    (tmp_path / "raylet_node_id").write_text("not an id\n")
    assert find_node_id(session, tmp_path) is None
    for node in NODES:
        (tmp_path / "raylet_node_id").write_text(f"{node}\n")
        assert find_node_id(session, tmp_path) == node
    (session / f"metrics_export_port_{NODES[0]}").write_text("1")
    assert find_node_id(session, tmp_path) == NODES[0]


# The order


@pytest.fixture
def finder(tmp_path: Path) -> NodeIdFinder:
    """A collector whose events report the last node."""
    return NodeIdFinder(Settings(ray_tmp_root=str(tmp_path)), lambda session: NODES[2] if session == SESSION else None)


def test_files_win_over_an_earlier_id_and_that_over_events(finder: NodeIdFinder) -> None:
    assert finder.current(SESSION, NODES[0], NODES[1]) == NODES[0]
    assert finder.current(SESSION, None, NODES[1]) == NODES[1]
    assert finder.current(SESSION, None, None) == NODES[2]
    assert finder.current("other", None, None) is None


def test_placeholder_is_replaced_by_any_id(finder: NodeIdFinder) -> None:
    assert finder.current(SESSION, None, finder.placeholder) == NODES[2]
    assert finder.current("other", None, finder.placeholder) is None


def test_unassigned_events_get_a_placeholder_after_the_timeout(finder: NodeIdFinder, session: Path) -> None:
    assert asyncio.run(finder.for_unassigned("other", 119.0)) is None
    assert asyncio.run(finder.for_unassigned("other", 121.0)) == finder.placeholder
    assert asyncio.run(finder.for_unassigned(SESSION, 0.0)) == NODES[2]
    (session / f"metrics_export_port_{NODES[0]}").write_text("1")
    assert asyncio.run(finder.for_unassigned(SESSION, 0.0)) == NODES[0]


@pytest.mark.parametrize("has_directory", [False, True])
def test_fallback_is_the_placeholder_unless_an_id_is_found_in_time(
    finder: NodeIdFinder, monkeypatch: pytest.MonkeyPatch, has_directory: bool
) -> None:
    for timeout in ("_PLACEHOLDER_AFTER_S", "_PLACEHOLDER_WITHOUT_FILES_AFTER_S"):
        monkeypatch.setattr(node_id, timeout, 0.05)

    async def fallback(*, is_found: bool) -> str | None:
        found = asyncio.Event()
        if is_found:
            found.set()
        return await finder.fallback(SESSION, found, lambda: has_directory)

    assert asyncio.run(fallback(is_found=False)) == finder.placeholder
    assert asyncio.run(fallback(is_found=True)) is None


def test_placeholder_is_a_valid_node_folder_and_differs_by_directory(tmp_path: Path) -> None:
    placeholder = placeholder_node_id(tmp_path)
    assert is_node_folder(placeholder)
    assert placeholder == placeholder_node_id(tmp_path)
    assert placeholder != placeholder_node_id(tmp_path / "other")


def test_unreachable_or_malformed_dashboard_gives_no_id() -> None:
    settings = Settings(fq_ray_ip="http://127.0.0.1:9")
    assert asyncio.run(find_node_id_by_ip("10.1.2.3", settings)) is None
    with run_dashboard() as head:
        assert asyncio.run(find_node_id_by_ip("10.1.2.3", Settings(fq_ray_ip=head.url))) is None
