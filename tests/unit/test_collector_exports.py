"""Ray's export files become records, each line once, whatever happens to the files."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rayhistory.collector.block import Damage
from rayhistory.collector.exports import Exports
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.segment import records
from rayhistory.collector.spool import Spool

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NAME = "event_EXPORT_SUBMISSION_JOB.log"


def line(number: int, **fields: Any) -> str:
    data = {"submission_job_id": f"raysubmit_{number}", "status": "RUNNING"}
    return json.dumps(
        {"event_id": f"e{number}", "timestamp": 1794770302, "source_type": "X", "event_data": data, **fields}
    )


class Place:
    def __init__(self, directory: Path) -> None:
        self.files = directory / "export_events"
        self.files.mkdir(exist_ok=True)
        self.metrics = Metrics()
        self.spool = Spool(directory / "spool", budget=10**8, segment_size=10**8, segment_age=300)
        self.exports = Exports(SESSION, self.files, self.spool.directory / "exports", self.spool, self.metrics)

    def write(self, *lines: str, name: str = NAME) -> None:
        with (self.files / name).open("a") as file:
            file.write("".join(f"{each}\n" for each in lines))


def at(directory: Path, use: Callable[[Place], Awaitable[None]]) -> Place:
    async def session() -> Place:
        place = Place(directory)
        await place.spool.open()
        await place.spool.name_node(SESSION, "ab" * 28)
        await use(place)
        await place.spool.shut()
        return place

    return asyncio.run(session())


def kept(directory: Path) -> list[dict[str, Any]]:
    found = [record for path in sorted(directory.rglob("*.wal")) for record in records(path, Damage())]
    assert all(category == "snapshots" for category, _ in found)
    return [json.loads(text) for _, text in found]


def ids(directory: Path) -> list[str]:
    return [each["exportRecord"]["line"]["event_id"] for each in kept(directory)]


def test_a_line_becomes_a_record(tmp_path: Path) -> None:
    """With the file's name, the line as it is, and the line's own time."""

    async def use(place: Place) -> None:
        place.write(line(1, big=12345678901234567890))
        await place.exports.take()

    at(tmp_path, use)
    (record,) = kept(tmp_path)
    assert record["eventType"] == "EXPORT_RECORD"
    assert record["sessionName"] == SESSION
    assert record["nodeId"] == "ab" * 28
    assert record["timestamp"].startswith("2026-11-15T19:18:22")
    assert record["exportRecord"] == {"file": NAME, "line": json.loads(line(1, big=12345678901234567890))}


def test_only_what_is_new_is_read_also_after_a_restart(tmp_path: Path) -> None:
    """Half a line waits for its end."""

    async def first(place: Place) -> None:
        place.write(line(1), line(2))
        with (place.files / NAME).open("a") as file:
            file.write(line(3)[:20])
        await place.exports.take()
        await place.exports.take()

    async def second(place: Place) -> None:
        await place.exports.take()
        with (place.files / NAME).open("a") as file:
            file.write(line(3)[20:] + "\n")
        await place.exports.take()

    at(tmp_path, first)
    assert ids(tmp_path) == ["e1", "e2"]
    at(tmp_path, second)
    assert ids(tmp_path) == ["e1", "e2", "e3"]


def test_a_rotated_file_is_read_to_its_end_and_not_again(tmp_path: Path) -> None:
    """It keeps its inode; a truncated one begins anew."""

    async def use(place: Place) -> None:
        place.write(line(1))
        await place.exports.take()
        place.write(line(2))
        (place.files / NAME).rename(place.files / f"{NAME}.1")
        place.write(line(3))
        await place.exports.take()
        (place.files / NAME).write_text("")
        place.write(line(4, event_id="4"))
        await place.exports.take()

    at(tmp_path, use)
    assert ids(tmp_path) == ["e1", "e3", "e2", "4"]
    assert {each["exportRecord"]["file"] for each in kept(tmp_path)} == {NAME}


def test_other_files_and_what_is_no_record_are_left_out(tmp_path: Path) -> None:
    """Links may lead anywhere; lines that are no objects are counted."""

    async def use(place: Place) -> None:
        (place.files / "event_EXPORT_LINK.log").symlink_to("/etc/passwd")
        (place.files / "event_RAYLET.log").write_text("{}\n")
        place.write("not JSON", "[1]", line(1))
        await place.exports.take()

    place = at(tmp_path, use)
    assert ids(tmp_path) == ["e1"]
    assert place.metrics.bad == 2


def test_the_same_line_has_the_same_id(tmp_path: Path) -> None:
    """After a crash before the position was noted, it is read again: readers can tell."""

    async def use(place: Place) -> None:
        place.write(line(1))
        await place.exports.take()
        (place.spool.directory / "exports" / f"{SESSION}.json").unlink()
        again = Exports(SESSION, place.files, place.spool.directory / "exports", place.spool, place.metrics)
        await again.take()

    at(tmp_path, use)
    first, second = kept(tmp_path)
    assert first["eventId"] == second["eventId"]


def test_a_large_file_is_taken_in_pieces(tmp_path: Path) -> None:
    """Memory does not grow with it."""

    async def use(place: Place) -> None:
        place.write(*(line(n, pad="x" * 1000) for n in range(3000)))
        await place.exports.take()

    at(tmp_path, use)
    assert ids(tmp_path) == [f"e{n}" for n in range(3000)]


def test_an_inode_that_is_used_again_is_another_file(tmp_path: Path) -> None:
    """File systems give it at once to the next file, which may have outgrown the old one before anybody looks."""

    async def use(place: Place) -> None:
        place.write(line(1), line(2))
        await place.exports.take()
        inode = (place.files / NAME).stat().st_ino
        os.truncate(place.files / NAME, 0)  # no file system gives an inode again for sure
        place.write(*(line(number) for number in range(3, 9)))
        assert (place.files / NAME).stat().st_ino == inode
        await place.exports.take()
        place.write(line(9))
        await place.exports.take()

    at(tmp_path, use)
    assert ids(tmp_path) == [f"e{number}" for number in range(1, 10)]


def test_positions_of_an_earlier_version_are_understood(tmp_path: Path) -> None:
    """They do not say how the file began."""

    async def use(place: Place) -> None:
        place.write(line(1))
        status = (place.files / NAME).stat()
        noted = {f"{status.st_dev}:{status.st_ino}": {"name": NAME, "offset": status.st_size}}
        (place.spool.directory / "exports").mkdir()
        (place.spool.directory / "exports" / f"{SESSION}.json").write_text(json.dumps(noted))
        place.write(line(2))
        await place.exports.take()

    at(tmp_path, use)
    assert ids(tmp_path) == ["e2"]
