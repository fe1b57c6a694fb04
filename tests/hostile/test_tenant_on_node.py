"""A job with a shell on its node: it can write to Ray's directory, and post to the collector."""

import json
import os
import re
import shutil
import socket
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from rayhistory.collector.metrics.dashboard_files import list_dashboards
from rayhistory.collector.metrics.sampler import SampleWindow
from rayhistory.collector.metrics.scrape import Scrape
from rayhistory.collector.session import export_file_reader, orphaned_sessions
from rayhistory.collector.session.node_id import find_node_id
from rayhistory.collector.session.ray_discovery import gcs_answers, session_start_ms
from rayhistory.collector.spool.quarantine import QUARANTINE_DIR
from rayhistory.metrics.dashboard_bundle import MAX_DASHBOARDS
from rayhistory.metrics.samples import decode as decode_samples
from support.collector_process import (
    NODE,
    SESSION,
    CollectorProcess,
    FakeRay,
    event,
    eventually,
    running_collector,
)

OLD_SESSION = "session_2026-11-14_10-00-00_000000_100"
FUTURE_SESSION = "session_9999-01-01_00-00-00_000000_1"
MIB = 2**20


def records(collector: CollectorProcess, session: str) -> Path:
    return collector.store / "ray-history/sessions/default/test" / session


def write_ended_session(store: Path, session: str) -> dict[str, bytes]:
    """Write the records of a session that another collector has ended; return them by name."""
    directory = store / "ray-history/sessions/default/test" / session
    directory.mkdir(parents=True)
    start = {"namespace": "default", "cluster": "test", "session": session, "started_ms": 1794650400000}
    (directory / "start.json").write_text(json.dumps(start))
    (directory / "end.json").write_text(json.dumps({"ended_ms": 1794654000000}))
    return read_files(directory)


def read_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def move_session_latest(home: Path, session: str) -> None:
    (home / "session_latest").unlink()
    (home / "session_latest").symlink_to(home / session)


def wait_until_collected(collector: CollectorProcess, session: str) -> None:
    eventually((records(collector, session) / "alive").exists)


# The spool


def test_link_in_the_spool_leads_nowhere(home: Path) -> None:
    """The collector wrote chosen content into a chosen directory, through a link at the quarantine's place."""
    target = home / "target"
    target.mkdir()
    spool = home / "spool" / "test_default"  # in Ray's directory
    spool.mkdir(parents=True)
    (spool / QUARANTINE_DIR).symlink_to(target)
    (spool / SESSION).symlink_to(target)
    (spool / "counts.json.half").symlink_to(target / "counts")
    with running_collector(home) as collector:
        assert collector.post(b"chosen content").status_code == 200
        assert collector.post([event(1)]).status_code == 200
        assert collector.spooled()
    assert list(target.iterdir()) == []
    assert [path.read_bytes() for path in (spool / QUARANTINE_DIR).iterdir()] == [b"chosen content"]


def test_spool_in_place_of_a_link_is_refused(home: Path) -> None:
    """Ray's directory is the only volume, and a job has put a link where the spool should be."""
    target = home / "target"
    target.mkdir()
    (home / "spool").symlink_to(target)
    with running_collector(home) as collector:
        assert collector.post([event(1)]).status_code == 503
        (home / "spool").unlink()
        eventually(lambda: collector.post([event(1)]).status_code == 200)
    assert list(target.iterdir()) == []
    assert collector.spool.stat().st_mode & 0o777 == 0o700


def test_file_linked_into_the_spool_is_not_uploaded(home: Path, ray: FakeRay) -> None:
    secret = home / "secret"
    with running_collector(home) as collector:
        collector.post([event(1)])
        (segment,) = eventually(lambda: list(collector.spool.rglob("*.wal")))
        collector.kill()
        shutil.copy(segment, secret)
        segment.unlink()
        segment.with_name(f"7-{NODE}.wal").symlink_to(secret)
        ray.start()
        collector.start()
        collector.post([event(2)])
        ray.stop()
        assert collector.terminate() == 0
    assert [each["eventId"] for each in collector.stored_events()] == ["2"]


def test_session_directory_swapped_for_a_link_is_not_read(home: Path, ray: FakeRay) -> None:
    """Logs of the directory that was found are stored, and nothing of the directory that the link leads to."""
    directory = ray.start()
    secrets = home / "elsewhere"
    (secrets / "logs" / "export_events").mkdir(parents=True)
    (secrets / "logs" / "secret.log").write_text("secret")
    with running_collector(home, "--role=Head", "--log-interval=200ms") as collector:
        wait_until_collected(collector, SESSION)
        directory.rename(home / "moved")
        directory.symlink_to(secrets)
        (home / "moved" / "logs" / "later.log").write_text("later\n")
        time.sleep(2)
        ray.stop()
        assert collector.terminate() == 0
    names = [Path(key).name for key in collector.stored_keys()]
    assert "later.log" in names
    assert "secret.log" not in names


def test_orphaned_session_that_is_a_link_is_not_read(home: Path) -> None:
    secrets = home / "elsewhere" / SESSION
    (secrets / "logs").mkdir(parents=True)
    (secrets / "logs" / "secret.log").write_text("secret")
    os.utime(secrets / "logs" / "secret.log", (1000, 1000))
    (home / SESSION).symlink_to(secrets)
    (home / "prev-logs" / SESSION).mkdir(parents=True)
    (home / "prev-logs" / SESSION / NODE).symlink_to(secrets)
    with running_collector(home, "--role=Head") as collector:
        time.sleep(2)
        assert collector.terminate() == 0
    assert not any("secret.log" in key for key in collector.stored_keys())


# Sessions


def test_ended_session_stays_ended_and_the_running_one_running(home: Path, ray: FakeRay) -> None:
    """One POST that named an old session, with session_latest moved, removed its end.json and ended the running one."""
    before = write_ended_session(home / "store", OLD_SESSION)
    ray.start()
    with running_collector(home, "--role=Head", "--event-rotation-interval=200ms") as collector:
        wait_until_collected(collector, SESSION)
        (home / OLD_SESSION / "logs").mkdir(parents=True)
        move_session_latest(home, OLD_SESSION)
        assert collector.post([event(666, OLD_SESSION)]).status_code == 200
        eventually(lambda: list(collector.spool.joinpath(QUARANTINE_DIR).glob("*-unknown_session")))
        collector.post([event(1)])
        eventually(lambda: [each for each in collector.stored_events() if each["eventId"] == "1"])
        assert (records(collector, SESSION) / "alive").exists()
        assert not (records(collector, SESSION) / "end.json").exists()
        ray.stop()
        assert collector.terminate() == 0
    assert read_files(records(collector, OLD_SESSION)) == before
    assert [each["eventId"] for each in collector.stored_events()] == ["1"]


@pytest.mark.parametrize("spool_is_kept", [True, False], ids=["spool", "no spool"])
def test_job_that_kills_its_raylet_cannot_resume_an_old_session(home: Path, ray: FakeRay, spool_is_kept: bool) -> None:
    """It listens in a directory of that name. Its own session is in the spool, and in the store after that end."""
    before = write_ended_session(home / "store", OLD_SESSION)
    ray.start()
    impostor = FakeRay(home)
    with running_collector(home, "--role=Head") as collector:
        wait_until_collected(collector, SESSION)
        eventually(lambda: SESSION in (collector.spool / "counts.json").read_text())
        collector.kill()
        ray.stop()
        shutil.rmtree(home / SESSION)
        if not spool_is_kept:
            shutil.rmtree(collector.spool)
        impostor.start(OLD_SESSION)
        try:
            collector.start()
            message = "session already has an end record, keeping it"
            eventually(lambda: [line for line in collector.log() if line["event"] == message])
        finally:
            impostor.stop()
        assert collector.terminate() == 0
    assert read_files(records(collector, OLD_SESSION)) == before


def test_restarted_collector_returns_to_the_session_whose_raylet_is_alive(home: Path, ray: FakeRay) -> None:
    """A job makes a directory with a listening socket, moves session_latest to it, and gets the collector killed."""
    ray.start()
    impostor = FakeRay(home)
    try:
        with running_collector(home, "--role=Head") as collector:
            wait_until_collected(collector, SESSION)
            eventually(lambda: SESSION in (collector.spool / "counts.json").read_text())
            collector.kill()
            impostor.start(OLD_SESSION)
            (records(collector, SESSION) / "alive").unlink()
            collector.start()
            wait_until_collected(collector, SESSION)
            assert not records(collector, OLD_SESSION).exists()
    finally:
        impostor.stop()


def test_session_of_the_far_future_does_not_become_the_latest(home: Path, ray: FakeRay) -> None:
    """Neither by its events, nor by a directory with a listening socket."""
    with running_collector(home, "--role=Head") as collector:
        assert collector.post([event(1, FUTURE_SESSION)]).status_code == 200
        ray.start(FUTURE_SESSION)
        assert collector.post([event(2, FUTURE_SESSION)]).status_code == 200
        time.sleep(2.5)
        ray.stop()
        ray.start(SESSION)
        wait_until_collected(collector, SESSION)
        ray.stop()
        assert collector.terminate() == 0
    assert not any(FUTURE_SESSION in key for key in collector.stored_keys())
    assert len(list(collector.spool.joinpath(QUARANTINE_DIR).glob("*-unknown_session"))) == 2


@pytest.mark.parametrize("place", [FUTURE_SESSION, f"prev-logs/{FUTURE_SESSION}/{NODE}"])
def test_directory_of_a_future_session_is_not_uploaded(home: Path, place: str) -> None:
    """Its logs were stored like those of a session that ended before the collector started."""
    for directory in (home / place, home / place.replace(FUTURE_SESSION, OLD_SESSION)):
        (directory / "logs").mkdir(parents=True)
        (directory / "logs" / "x.log").write_text("x")
        os.utime(directory / "logs" / "x.log", (1000, 1000))
    with running_collector(home, "--role=Head") as collector:
        eventually(lambda: any(OLD_SESSION in key and "x.log" in key for key in collector.stored_keys()))
        assert collector.terminate() == 0
    assert not any(FUTURE_SESSION in key for key in collector.stored_keys())


# Memory


def list_dashboard_files(session: Path) -> None:
    assert len(list_dashboards(session)) <= MAX_DASHBOARDS


def list_orphaned_sessions(session: Path) -> None:
    for _ in orphaned_sessions._folders(session, "many"):
        pass


FILE_READERS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "node id": ("", f"metrics_export_port_{NODE[:-6]}%06x", find_node_id),
    "raylet logs": ("logs", "raylet.%d.out", find_node_id),
    "other files": ("", "any-file-that-a-job-may-create-%d", find_node_id),
    "other logs": ("logs", "any-file-that-a-job-may-create-%d", find_node_id),
    "GCS ports": ("", f"gcs_server_port_{NODE[:-6]}%06x", gcs_answers),
    "start": ("", "any-file-that-a-job-may-create-%d", lambda session: session_start_ms(session, 0)),
    "Grafana dashboards": ("metrics/grafana/dashboards", "dashboard-of-a-job-%d.json", list_dashboard_files),
    "export files": ("logs/export_events", "any-file-that-a-job-may-create-%d", export_file_reader._export_files),
    "sessions": ("many", "any-file-that-a-job-may-create-%d", list_orphaned_sessions),
}
"""Where the files are, their names, and the function that lists them."""


@pytest.mark.parametrize("reader", FILE_READERS)
def test_many_files_in_a_session_directory_do_not_fill_the_memory(tmp_path: Path, reader: str) -> None:
    """Every listing kept all names and their status: 300,000 files took the 256 MiB of the collector's pod."""
    place, name, read = FILE_READERS[reader]
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(5_000):
        (folder / (name % number)).write_bytes(b"x")
    tracemalloc.start()
    try:
        read(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * MIB  # 5,000 names and their status are 4 MiB


@pytest.mark.parametrize("line", [b"# TYPE %s gauge\n", b"%s 1\n"], ids=["types", "series"])
def test_new_metrics_in_each_sample_do_not_fill_the_memory(line: bytes) -> None:
    """A job exposes other metrics each time. Types and the length of names were limited per sample only."""
    window = SampleWindow("key", NODE, 0)
    tracemalloc.start()
    try:
        for number in range(200):
            result = Scrape()
            for metric in range(100):
                result.add_line(line % (b"m%d_%d_" % (number, metric) + b"x" * 900), ())
            window.add(number, result)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB  # 20 and 26 MiB before
    assert len(decode_samples(window.encode()).times) == 200


def test_series_with_too_many_labels_hides_no_others() -> None:
    result = Scrape()
    result.add_line(b"many{" + b",".join(b'l%d="x"' % number for number in range(1000)) + b"} 1", ())
    result.add_line(b'few{a="x"} 2', ())
    window = SampleWindow("key", NODE, 0)
    window.add(0, result)
    samples = decode_samples(window.encode())
    assert ([each.name for each in samples.series], samples.dropped) == (["few"], 1)


def test_bodies_that_are_held_back_do_not_fill_the_memory(home: Path) -> None:
    """Forty bodies of 8 MiB, each without its last byte, took 360 MiB; a pod of the collector has 256 MiB."""
    body = b"[" + b" " * (8 * MIB - 100)
    request = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (len(body) + 1) + body
    with running_collector(home) as collector:
        assert collector.process
        senders = [Sender(collector.port, request) for _ in range(40)]
        try:
            deadline = time.monotonic() + 6
            while time.monotonic() < deadline:
                for sender in senders:
                    sender.send()
                time.sleep(0.01)
            assert collector.post([event(1)]).status_code == 200
            status = Path(f"/proc/{collector.process.pid}/status").read_text()
        finally:
            for sender in senders:
                sender.close()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak
    assert int(peak[1]) <= 100 * 1024


class Sender:
    """Sends as much of a request as the collector takes."""

    def __init__(self, port: int, request: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(False)
        self._rest = memoryview(request)

    def send(self) -> None:
        try:
            self._rest = self._rest[self._socket.send(self._rest[: MIB // 4]) :]
        except OSError:
            return  # full, or cut off

    def close(self) -> None:
        self._socket.close()
