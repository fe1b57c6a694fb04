"""Request bodies over raw sockets: huge, slow, aborted, chunked, and many at once."""

import json
import random
import socket
import threading
import time
from pathlib import Path

from faults.collector_under_test import SESSION, CollectorUnderTest, event
from faults.stored_state import read_state


def post(port: int, body: bytes, headers: bytes = b"") -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
        peer.sendall(b"POST /v1/events HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (headers, len(body)))
        for start in range(0, len(body), 1 << 20):
            peer.sendall(body[start : start + (1 << 20)])
        return peer.recv(65536)


def peak_resident_bytes(collector: CollectorUnderTest) -> int:
    assert collector.process
    text = Path(f"/proc/{collector.process.pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


def test_huge_bodies_are_acked_with_bounded_memory() -> None:
    """100 MB is over the limit: the body is acked, and its beginning is quarantined."""
    with CollectorUnderTest() as collector:
        collector.start()
        huge = b"[" + b" " * 100_000_000 + b"]"
        responses: list[bytes] = []
        threads = [threading.Thread(target=lambda: responses.append(post(collector.port, huge))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [response.split(b" ")[1] for response in responses] == [b"200"] * 4
        assert peak_resident_bytes(collector) < 200 * 2**20
        text = collector.get("/metrics")[1]
        assert 'rayhistory_collector_quarantined_total{reason="too_large"} 4.0' in text


def test_concurrent_large_bodies_are_accepted() -> None:
    """Bodies of 30 MB are within the limit and do not delay small ones."""
    with CollectorUnderTest("--event-max-disk-mb=1000") as collector:
        collector.start()
        rng = random.Random(1)
        names = [f"large-{n}" for n in range(8)]
        bodies = [json.dumps([{**event(name, rng), "pad": "x" * 15_000_000}] * 2).encode() for name in names]
        bodies = [body.replace(b"large-%d" % n, b"again-%d" % n, 1) for n, body in enumerate(bodies)]
        responses: list[bytes] = []
        threads = [
            threading.Thread(target=lambda body=body: responses.append(post(collector.port, body))) for body in bodies
        ]
        for thread in threads:
            thread.start()
        start = time.monotonic()
        assert b" 200 " in post(collector.port, json.dumps([event("small", rng)]).encode())
        assert time.monotonic() - start < 3
        for thread in threads:
            thread.join()
        assert all(b" 200 " in response for response in responses)
        assert peak_resident_bytes(collector) < 350 * 2**20
        assert collector.end() == 0
        acked = {"small", *names, *(f"again-{n}" for n in range(8))}
        assert not read_state(collector.store, acked).missing


def test_aborted_body_stores_nothing() -> None:
    with CollectorUnderTest() as collector:
        collector.start()
        rng = random.Random(1)
        body = json.dumps([event(str(n), rng) for n in range(100)]).encode()
        for cut in (0, 10, len(body) // 2, len(body) - 1):
            with socket.create_connection(("127.0.0.1", collector.port)) as peer:
                peer.sendall(b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
                peer.sendall(body[:cut])
        assert b" 200 " in post(collector.port, json.dumps([event("whole", rng)]).encode())
        assert collector.end() == 0
        assert set(read_state(collector.store, set()).event_counts) == {"whole"}


def test_slow_senders_do_not_delay_others() -> None:
    """Fifty connections stall after one byte of their bodies."""
    with CollectorUnderTest() as collector:
        collector.start()
        connections = []
        for _ in range(50):
            peer = socket.create_connection(("127.0.0.1", collector.port))
            peer.sendall(b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n[")
            connections.append(peer)
        rng = random.Random(1)
        for n in range(20):
            start = time.monotonic()
            assert b" 200 " in post(collector.port, json.dumps([event(str(n), rng)]).encode())
            assert time.monotonic() - start < 2
        for peer in connections:
            peer.close()


def test_chunked_bodies_are_accepted() -> None:
    """A proxy between Ray and the collector may send chunked bodies."""
    with CollectorUnderTest() as collector:
        collector.start()
        body = json.dumps([event("chunked", random.Random(1))]).encode()
        half = len(body) // 2
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]))
        with socket.create_connection(("127.0.0.1", collector.port)) as peer:
            peer.sendall(
                b"POST /v1/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
            )
            assert b" 200 " in peer.recv(65536)
        assert collector.end() == 0
        assert set(read_state(collector.store, set()).event_counts) == {"chunked"}


def test_session_and_job_names_do_not_become_paths() -> None:
    """Events with invalid session names are quarantined, valid events of the same batch are stored."""
    with CollectorUnderTest() as collector:
        collector.start()
        good = event("good", random.Random(1))
        names = [
            "../../../../tmp/evil",
            "/etc/passwd",
            "session_..",
            "a\0b",
            "session_2026-11-15_19-18-08_055078_/../x",
            "",
        ]
        invalid = [{**good, "eventId": f"invalid{n}", "sessionName": name} for n, name in enumerate(names)]
        jobs = ["../../evil", "/etc", "a\0b", "..", "x" * 5000]
        unusual = [
            {**good, "eventId": f"unusual{n}", "taskDefinitionEvent": {"jobId": job}} for n, job in enumerate(jobs)
        ]
        assert b" 200 " in post(collector.port, json.dumps([*invalid, good, *unusual, {**good, "eventId": 7}]).encode())
        assert collector.end() == 0
        stored = set(read_state(collector.store, set()).event_counts)
        assert stored == {"good", 7, *(f"unusual{n}" for n in range(len(jobs)))}
        folders = {path.parent.name for path in collector.store.rglob("*.jsonl.gz")}
        assert SESSION in str(next(collector.store.rglob("*.jsonl.gz")))
        assert not any(".." in folder or "evil" in folder for folder in folders)
