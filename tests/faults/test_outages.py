"""A store outage of an hour, which passes in half a minute, and clock jumps."""

import http.client
import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from faults.collector_under_test import NODE, SESSION, CollectorUnderTest, Sender, event
from faults.stored_state import read_state

SPEED = 120
OUTAGE_S = 3600
MIN_PAUSES = 30
"""The outage lasts until the store was tried this often, however busy the machine is."""


def post(port: int, names: list[str], rng: random.Random, pad: int = 0) -> tuple[int, str | None]:
    events = [{**event(name, rng), "pad": rng.randbytes(pad // 2).hex()} for name in names]
    body = json.dumps(events).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/v1/events", body)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers["Retry-After"]
    finally:
        connection.close()


def resident_bytes(collector: CollectorUnderTest) -> int:
    assert collector.process
    text = Path(f"/proc/{collector.process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


def attempts(path: Path) -> dict[str, list[float]]:
    """Times of the attempts to write each key, in the collector's own seconds."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in path.read_text().splitlines():
        at, _, key = line.partition(" ")
        found[key].append(float(at))
    return found


def max_per_minute(times: list[float]) -> int:
    return max(Counter(int(at // 60) for at in times).values())


def test_store_outage_of_an_hour_loses_nothing() -> None:
    """Events are accepted while the spool has room, spooled on disk, and uploaded after the outage."""
    rng = random.Random(1)
    acked: set[str] = set()
    with CollectorUnderTest(
        "--role=Head", "--grace-period=3h", "--event-max-disk-mb=40", FAULT_SPEED=str(SPEED)
    ) as collector:
        outage = collector.home / "outage"
        collector.set(FAULT_OUTAGE=str(outage))
        collector.start()
        log = collector.home / SESSION / "logs" / "worker.out"
        assert post(collector.port, ["before"], rng)[0] == 200
        acked.add("before")
        outage.touch()
        start = time.monotonic()
        sizes = []
        while time.monotonic() < start + OUTAGE_S / SPEED or len(event_pauses(attempts(outage))) < MIN_PAUSES:
            names = [f"hour-{len(acked)}-{n}" for n in range(10)]
            assert post(collector.port, names, rng, pad=10_000) == (200, None)
            acked.update(names)
            with log.open("a") as file:
                file.write("".join(f"{name}\n" for name in names))
            sizes.append(resident_bytes(collector))
            time.sleep(0.1)
        assert collector.status("/livez") == collector.status("/readyz") == 200
        waiting = sum(path.stat().st_size for path in collector.spool.rglob("*.wal"))
        quarter = len(sizes) // 4
        assert max(sizes[-quarter:]) - max(sizes[:quarter]) < waiting / 2

        # The spool fills up, and only then are events refused.
        while (response := post(collector.port, [name := f"much-{len(acked)}"], rng, pad=200_000))[0] == 200:
            acked.add(name)
        assert response[0] == 503
        assert int(response[1] or 0) > 0
        assert 'refused_total{reason="spool"}' in collector.get("/metrics")[1]

        attempted = attempts(outage)
        outage.unlink()
        check_backoff(attempted)
        collector.wait_until(lambda: not closed_segments(collector), 90)
        assert post(collector.port, ["after"], rng)[0] == 200
        acked.add("after")
        assert collector.end() == 0
        state = read_state(collector.store, acked)
        assert not state.missing
        assert not state.duplicates
        assert (state.received, state.dropped) == (len(acked), 0)
        stored_log = next(collector.store.rglob(f"{NODE}/logs/worker.out"))
        assert stored_log.read_bytes() == log.read_bytes()


def closed_segments(collector: CollectorUnderTest) -> int:
    """Number of segments that wait for upload."""
    (line,) = [
        line for line in collector.get("/metrics")[1].splitlines() if line.startswith("rayhistory_collector_seg")
    ]
    return int(float(line.split()[1]))


def event_pauses(attempted: dict[str, list[float]]) -> list[float]:
    """Pauses between attempts to write event objects. Attempts of one round are not apart."""
    times = sorted(at for key, each in attempted.items() if "_events/" in key for at in each)
    return [later - earlier for earlier, later in pairwise(times) if later - earlier > 10]


def check_backoff(attempted: dict[str, list[float]]) -> None:
    """Check that all segments share one backoff: short at first, then about a minute, with jitter.

    Time passes 120 times faster here, so a second in which the machine is busy looks like two minutes. Pauses may
    therefore be longer than the backoff, but not shorter.
    """
    assert max_per_minute([at for times in attempted.values() for at in times]) < 60
    later_pauses = sorted(event_pauses(attempted)[5:])
    assert later_pauses[len(later_pauses) // 8] > 25
    assert later_pauses[len(later_pauses) // 4] < 120
    assert len({round(pause) for pause in later_pauses}) > 5


@contextmanager
def jumping_clock(collector: CollectorUnderTest) -> Iterator[None]:
    """Make the clock jump repeatedly, by up to ten years in both directions."""
    rng, stop = random.Random(7), threading.Event()

    def jump() -> None:
        jumps = [0, 60, -60, 3600, -3600, 86400, -86400, 10 * 365 * 86400, -10 * 365 * 86400]
        while not stop.wait(0.3):
            (collector.home / "clock").write_text(str(rng.choice(jumps)))

    thread = threading.Thread(target=jump)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_clock_jumps_lose_and_duplicate_nothing() -> None:
    """Object names continue from the last one, also after a kill."""
    with CollectorUnderTest("--role=Head", "--event-rotation-interval=200ms") as collector:
        collector.set(FAULT_CLOCK=str(collector.home / "clock"))
        collector.start()
        log = collector.home / SESSION / "logs" / "worker.out"
        with jumping_clock(collector), Sender(collector.port, 5) as sender:
            for round_ in range(4):
                with log.open("a") as file:
                    file.write(f"line {round_}\n" * 1000)
                accepted = sender.statuses.get(200, 0)
                collector.wait_until(lambda accepted=accepted: sender.statuses.get(200, 0) > accepted + 30)
                time.sleep(1)
                if round_ == 1:
                    collector.kill()
                    collector.start()
        assert set(sender.statuses) == {200}
        assert collector.end() == 0
        state = read_state(collector.store, sender.acked)
        assert not state.missing
        assert not state.duplicates
        assert (state.received, state.dropped) == (state.event_counts.total(), 0)
        stored_log = next(collector.store.rglob(f"{NODE}/logs/worker.out"))
        assert stored_log.read_bytes() == log.read_bytes()
