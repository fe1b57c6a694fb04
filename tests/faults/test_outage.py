"""A store that is away for an hour, and a clock that jumps. The hour passes in half a minute."""

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

from faults.verdict import judge
from faults.victim import NODE, SESSION, Sender, Victim, event

SPEED = 120
HOUR = 3600


def post(port: int, names: list[str], dice: random.Random, pad: int = 0) -> tuple[int, str | None]:
    events = [{**event(name, dice), "pad": dice.randbytes(pad // 2).hex()} for name in names]
    body = json.dumps(events).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/v1/events", body)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers["Retry-After"]
    finally:
        connection.close()


def resident(victim: Victim) -> int:
    assert victim.process
    text = Path(f"/proc/{victim.process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


def attempts(path: Path) -> dict[str, list[float]]:
    """When each key was tried, in the collector's own seconds."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in path.read_text().splitlines():
        at, _, key = line.partition(" ")
        found[key].append(float(at))
    return found


def most_in_a_minute(times: list[float]) -> int:
    return max(Counter(int(at // 60) for at in times).values())


def test_a_store_that_is_away_for_an_hour_costs_nothing() -> None:
    """Everything is taken as long as there is room, tried rarely, kept on disk and not in memory, and then sent."""
    dice = random.Random(1)
    acked: set[str] = set()
    with Victim("--role=Head", "--grace-period=3h", "--event-max-disk-mb=40", FAULT_SPEED=str(SPEED)) as victim:
        away = victim.home / "away"
        victim.set(FAULT_AWAY=str(away))
        victim.start()
        log = victim.home / SESSION / "logs" / "worker.out"
        assert post(victim.port, ["before"], dice)[0] == 200
        acked.add("before")
        away.touch()
        began = time.monotonic()
        sizes = []
        while time.monotonic() < began + HOUR / SPEED:
            names = [f"hour-{len(acked)}-{n}" for n in range(10)]
            assert post(victim.port, names, dice, pad=10_000) == (200, None)
            acked.update(names)
            with log.open("a") as file:
                file.write("".join(f"{name}\n" for name in names))
            sizes.append(resident(victim))
            time.sleep(0.1)
        assert victim.status("/livez") == victim.status("/readyz") == 200
        waiting = sum(path.stat().st_size for path in victim.spool.rglob("*.wal"))
        quarter = len(sizes) // 4
        assert max(sizes[-quarter:]) - max(sizes[:quarter]) < waiting / 2

        # Only now is there a reason to refuse.
        while (answer := post(victim.port, [name := f"much-{len(acked)}"], dice, pad=200_000))[0] == 200:
            acked.add(name)
        assert answer[0] == 503
        assert int(answer[1] or 0) > 0
        assert 'refused_total{reason="spool"}' in victim.get("/metrics")[1]

        tried = attempts(away)
        away.unlink()
        check_patience(tried)
        victim.until(lambda: not closed(victim), 90)
        assert post(victim.port, ["after"], dice)[0] == 200
        acked.add("after")
        assert victim.end() == 0
        verdict = judge(victim.store, acked)
        assert not verdict.missing
        assert not verdict.twice
        assert (verdict.received, verdict.dropped) == (len(acked), 0)
        kept = next(victim.store.rglob(f"{NODE}/logs/worker.out"))
        assert kept.read_bytes() == log.read_bytes()


def closed(victim: Victim) -> int:
    """Spool files that wait for the store."""
    (line,) = [line for line in victim.get("/metrics")[1].splitlines() if line.startswith("rayhistory_collector_seg")]
    return int(float(line.split()[1]))


def check_patience(tried: dict[str, list[float]]) -> None:
    """However many segments wait, one knocks for all: soon at first, then about once a minute, never in step."""
    assert most_in_a_minute([at for times in tried.values() for at in times]) < 60
    times = sorted(at for key, each in tried.items() if "_events/" in key for at in each)
    rounds = [later - earlier for earlier, later in pairwise(times) if later - earlier > 10]
    settled = rounds[5:]
    assert len(settled) > 20
    assert min(settled) > 25
    assert max(settled) < 120
    assert len({round(pause) for pause in settled}) > 5


@contextmanager
def wrong_clock(victim: Victim) -> Iterator[None]:
    """The clock jumps by anything up to years, forwards and back, again and again."""
    dice, stop = random.Random(7), threading.Event()

    def jump() -> None:
        jumps = [0, 60, -60, 3600, -3600, 86400, -86400, 10 * 365 * 86400, -10 * 365 * 86400]
        while not stop.wait(0.3):
            (victim.home / "clock").write_text(str(dice.choice(jumps)))

    thread = threading.Thread(target=jump)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_clock_that_jumps_loses_and_repeats_nothing() -> None:
    """Also not when the process is killed meanwhile: names of objects go on from the last one."""
    with Victim("--role=Head", "--event-rotation-interval=200ms") as victim:
        victim.set(FAULT_CLOCK=str(victim.home / "clock"))
        victim.start()
        log = victim.home / SESSION / "logs" / "worker.out"
        with wrong_clock(victim), Sender(victim.port, 5) as sender:
            for round_ in range(4):
                with log.open("a") as file:
                    file.write(f"line {round_}\n" * 1000)
                stored = sender.statuses.get(200, 0)
                victim.until(lambda stored=stored: sender.statuses.get(200, 0) > stored + 30)
                time.sleep(1)
                if round_ == 1:
                    victim.kill()
                    victim.start()
        assert set(sender.statuses) == {200}
        assert victim.end() == 0
        verdict = judge(victim.store, sender.acked)
        assert not verdict.missing
        assert not verdict.twice
        assert (verdict.received, verdict.dropped) == (verdict.stored.total(), 0)
        kept = next(victim.store.rglob(f"{NODE}/logs/worker.out"))
        assert kept.read_bytes() == log.read_bytes()
