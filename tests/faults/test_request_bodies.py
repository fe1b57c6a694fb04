"""Bodies over a real connection that no test client would send: huge, slow, broken off, many at once."""

import json
import random
import socket
import threading
import time
from pathlib import Path

from faults.verdict import judge
from faults.victim import SESSION, Victim, event


def post(port: int, body: bytes, headers: bytes = b"") -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
        peer.sendall(b"POST /v1/events HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (headers, len(body)))
        for start in range(0, len(body), 1 << 20):
            peer.sendall(body[start : start + (1 << 20)])
        return peer.recv(65536)


def resident(victim: Victim) -> int:
    assert victim.process
    text = Path(f"/proc/{victim.process.pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


def test_huge_bodies_are_answered_and_memory_is_bounded() -> None:
    """100 MB is more than the limit: acknowledged, its beginning set aside. Several at once cost no more."""
    with Victim() as victim:
        victim.start()
        huge = b"[" + b" " * 100_000_000 + b"]"
        answers: list[bytes] = []
        threads = [threading.Thread(target=lambda: answers.append(post(victim.port, huge))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answer.split(b" ")[1] for answer in answers] == [b"200"] * 4
        assert resident(victim) < 200 * 2**20
        text = victim.get("/metrics")[1]
        assert 'rayhistory_collector_set_aside_total{reason="too large"} 4.0' in text


def test_large_bodies_at_once_are_all_taken() -> None:
    """30 MB each, within the limit: one after the other, and small ones are not kept waiting."""
    with Victim("--event-max-disk-mb=1000") as victim:
        victim.start()
        dice = random.Random(1)
        names = [f"large-{n}" for n in range(8)]
        bodies = [json.dumps([{**event(name, dice), "pad": "x" * 15_000_000}] * 2).encode() for name in names]
        bodies = [body.replace(b"large-%d" % n, b"again-%d" % n, 1) for n, body in enumerate(bodies)]
        answers: list[bytes] = []
        threads = [
            threading.Thread(target=lambda body=body: answers.append(post(victim.port, body))) for body in bodies
        ]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        assert b" 200 " in post(victim.port, json.dumps([event("small", dice)]).encode())
        assert time.monotonic() - began < 3
        for thread in threads:
            thread.join()
        assert all(b" 200 " in answer for answer in answers)
        assert resident(victim) < 350 * 2**20
        assert victim.end() == 0
        acked = {"small", *names, *(f"again-{n}" for n in range(8))}
        assert not judge(victim.store, acked).missing


def test_a_sender_that_goes_away_in_the_middle_leaves_nothing_behind() -> None:
    """Half a batch is no batch: it was not acknowledged."""
    with Victim() as victim:
        victim.start()
        dice = random.Random(1)
        body = json.dumps([event(str(n), dice) for n in range(100)]).encode()
        for cut in (0, 10, len(body) // 2, len(body) - 1):
            with socket.create_connection(("127.0.0.1", victim.port)) as peer:
                peer.sendall(b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
                peer.sendall(body[:cut])
        assert b" 200 " in post(victim.port, json.dumps([event("whole", dice)]).encode())
        assert victim.end() == 0
        assert set(judge(victim.store, set()).stored) == {"whole"}


def test_slow_senders_do_not_keep_others_waiting() -> None:
    """Fifty that send a byte now and then; a normal one is answered at once."""
    with Victim() as victim:
        victim.start()
        slow = []
        for _ in range(50):
            peer = socket.create_connection(("127.0.0.1", victim.port))
            peer.sendall(b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n[")
            slow.append(peer)
        dice = random.Random(1)
        for n in range(20):
            began = time.monotonic()
            assert b" 200 " in post(victim.port, json.dumps([event(str(n), dice)]).encode())
            assert time.monotonic() - began < 2
        for peer in slow:
            peer.close()


def test_chunked_bodies_are_taken() -> None:
    """A proxy between Ray and the collector may send them so."""
    with Victim() as victim:
        victim.start()
        body = json.dumps([event("chunked", random.Random(1))]).encode()
        half = len(body) // 2
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]))
        with socket.create_connection(("127.0.0.1", victim.port)) as peer:
            peer.sendall(
                b"POST /v1/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
            )
            assert b" 200 " in peer.recv(65536)
        assert victim.end() == 0
        assert set(judge(victim.store, set()).stored) == {"chunked"}


def test_names_that_are_paths_never_leave_the_spool() -> None:
    """Neither a session nor a job becomes a path; what is wrong is set aside beside the good ones."""
    with Victim() as victim:
        victim.start()
        good = event("good", random.Random(1))
        names = [
            "../../../../tmp/evil",
            "/etc/passwd",
            "session_..",
            "a\0b",
            "session_2026-11-15_19-18-08_055078_/../x",
            "",
        ]
        bad = [{**good, "eventId": f"bad{n}", "sessionName": name} for n, name in enumerate(names)]
        jobs = ["../../evil", "/etc", "a\0b", "..", "x" * 5000]
        odd = [{**good, "eventId": f"odd{n}", "taskDefinitionEvent": {"jobId": job}} for n, job in enumerate(jobs)]
        assert b" 200 " in post(victim.port, json.dumps([*bad, good, *odd, {**good, "eventId": 7}]).encode())
        assert victim.end() == 0
        stored = set(judge(victim.store, set()).stored)
        assert stored == {"good", 7, *(f"odd{n}" for n in range(len(jobs)))}
        folders = {path.parent.name for path in victim.store.rglob("*.jsonl.gz")}
        assert SESSION in str(next(victim.store.rglob("*.jsonl.gz")))
        assert not any(".." in folder or "evil" in folder for folder in folders)
