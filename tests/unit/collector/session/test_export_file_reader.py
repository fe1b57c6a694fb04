"""Lines of Ray's export files become records, each line once, whatever happens to the files."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rayhistory.collector.session.export_file_reader import ExportFileReader
from rayhistory.collector.spool.block import Damage
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.spool import Spool
from rayhistory.collector.telemetry import Telemetry
from support.spool_segments import read_lines

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NAME = "event_EXPORT_SUBMISSION_JOB.log"


def make_line(number: int, **fields: Any) -> str:
    data = {"submission_job_id": f"raysubmit_{number}", "status": "RUNNING"}
    return json.dumps(
        {"event_id": f"e{number}", "timestamp": 1794770302, "source_type": "X", "event_data": data, **fields}
    )


class ExportNode:
    """A directory of export files, a spool, and a reader between them."""

    def __init__(self, directory: Path) -> None:
        self.session = directory / "session"
        self.files = self.session / "logs" / "export_events"
        self.files.mkdir(parents=True, exist_ok=True)
        self.telemetry = Telemetry()
        self.spool = Spool(PrivateDirectory(directory / "spool"), budget=10**8, segment_size=10**8, segment_age=300)
        self.reader = self.make_reader()

    @property
    def positions(self) -> Path:
        return self.spool.directory.path / "exports" / f"{SESSION}.json"

    def make_reader(self) -> ExportFileReader:
        return ExportFileReader(
            SESSION, self.session, self.spool.directory.folder("exports"), self.spool, self.telemetry
        )

    def write(self, *lines: str, name: str = NAME) -> None:
        with (self.files / name).open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))


def run_node(directory: Path, use: Callable[[ExportNode], Awaitable[None]]) -> ExportNode:
    async def run() -> ExportNode:
        node = ExportNode(directory)
        await node.spool.open()
        await node.spool.assign_node(SESSION, "ab" * 28)
        await use(node)
        await node.spool.close()
        return node

    return asyncio.run(run())


def spooled_records(directory: Path) -> list[dict[str, Any]]:
    lines = [line for path in sorted(directory.rglob("*.wal")) for line in read_lines(path, Damage())]
    assert all(category == "snapshots" for category, _ in lines)
    return [json.loads(text) for _, text in lines]


def event_ids(directory: Path) -> list[str]:
    return [record["exportRecord"]["line"]["event_id"] for record in spooled_records(directory)]


def test_line_becomes_a_record_with_its_file_and_time(tmp_path: Path) -> None:
    async def use(node: ExportNode) -> None:
        node.write(make_line(1, big=12345678901234567890))
        await node.reader.read_new_lines()

    run_node(tmp_path, use)
    (record,) = spooled_records(tmp_path)
    assert record["eventType"] == "EXPORT_RECORD"
    assert record["sessionName"] == SESSION
    assert record["nodeId"] == "ab" * 28
    assert record["timestamp"].startswith("2026-11-15T19:18:22")
    assert record["exportRecord"] == {"file": NAME, "line": json.loads(make_line(1, big=12345678901234567890))}


def test_only_new_lines_are_read_also_after_a_restart(tmp_path: Path) -> None:
    """An unfinished line waits for its end."""

    async def first(node: ExportNode) -> None:
        node.write(make_line(1), make_line(2))
        with (node.files / NAME).open("a") as file:
            file.write(make_line(3)[:20])
        await node.reader.read_new_lines()
        await node.reader.read_new_lines()

    async def second(node: ExportNode) -> None:
        await node.reader.read_new_lines()
        with (node.files / NAME).open("a") as file:
            file.write(make_line(3)[20:] + "\n")
        await node.reader.read_new_lines()

    run_node(tmp_path, first)
    assert event_ids(tmp_path) == ["e1", "e2"]
    run_node(tmp_path, second)
    assert event_ids(tmp_path) == ["e1", "e2", "e3"]


def test_rotated_file_is_read_to_its_end_and_a_truncated_one_from_its_start(tmp_path: Path) -> None:
    async def use(node: ExportNode) -> None:
        node.write(make_line(1))
        await node.reader.read_new_lines()
        node.write(make_line(2))
        (node.files / NAME).rename(node.files / f"{NAME}.1")
        node.write(make_line(3))
        await node.reader.read_new_lines()
        (node.files / NAME).write_text("")
        node.write(make_line(4, event_id="4"))
        await node.reader.read_new_lines()

    run_node(tmp_path, use)
    assert event_ids(tmp_path) == ["e1", "e3", "e2", "4"]
    assert {record["exportRecord"]["file"] for record in spooled_records(tmp_path)} == {NAME}


def test_links_other_files_and_malformed_lines_are_skipped(tmp_path: Path) -> None:
    """Malformed lines are counted."""

    async def use(node: ExportNode) -> None:
        (node.files / "event_EXPORT_LINK.log").symlink_to("/etc/passwd")
        (node.files / "event_RAYLET.log").write_text("{}\n")
        node.write("not JSON", "[1]", make_line(1))
        await node.reader.read_new_lines()

    node = run_node(tmp_path, use)
    assert event_ids(tmp_path) == ["e1"]
    assert node.telemetry.quarantined_count == 2


def test_line_that_is_read_twice_has_the_same_event_id(tmp_path: Path) -> None:
    """After a crash before its position was saved, readers can tell."""

    async def use(node: ExportNode) -> None:
        node.write(make_line(1))
        await node.reader.read_new_lines()
        node.positions.unlink()
        await node.make_reader().read_new_lines()

    run_node(tmp_path, use)
    first, second = spooled_records(tmp_path)
    assert first["eventId"] == second["eventId"]


def test_large_file_is_read_in_chunks(tmp_path: Path) -> None:
    async def use(node: ExportNode) -> None:
        node.write(*(make_line(n, pad="x" * 1000) for n in range(3000)))
        await node.reader.read_new_lines()

    run_node(tmp_path, use)
    assert event_ids(tmp_path) == [f"e{n}" for n in range(3000)]


def test_reused_inode_is_a_new_file(tmp_path: Path) -> None:
    """Even if the new file has outgrown the old one before it is read."""

    async def use(node: ExportNode) -> None:
        node.write(make_line(1), make_line(2))
        await node.reader.read_new_lines()
        inode = (node.files / NAME).stat().st_ino
        os.truncate(node.files / NAME, 0)  # no file system reuses an inode reliably
        node.write(*(make_line(number) for number in range(3, 9)))
        assert (node.files / NAME).stat().st_ino == inode
        await node.reader.read_new_lines()
        node.write(make_line(9))
        await node.reader.read_new_lines()

    run_node(tmp_path, use)
    assert event_ids(tmp_path) == [f"e{number}" for number in range(1, 10)]


def test_positions_of_an_earlier_release_are_understood(tmp_path: Path) -> None:
    """They have no CRC of the file's start."""

    async def use(node: ExportNode) -> None:
        node.write(make_line(1))
        status = (node.files / NAME).stat()
        positions = {f"{status.st_dev}:{status.st_ino}": {"name": NAME, "offset": status.st_size}}
        node.positions.parent.mkdir()
        node.positions.write_text(json.dumps(positions))
        node.write(make_line(2))
        await node.reader.read_new_lines()

    run_node(tmp_path, use)
    assert event_ids(tmp_path) == ["e2"]
