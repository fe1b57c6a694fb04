"""One bad day of a cluster, from a seed: what goes wrong and when is drawn once, and then lived with real processes.

A day has one to three nodes with a collector each, tasks whose events are posted to them, log files that grow and
are rotated, one of two stores, and a reader who opens the session in the end. The seed decides the schedule; how far
everybody was at a given moment is up to the machine.
"""

import contextlib
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faults import bad_disk
from faults.disks import fill, small_disk, tear, used
from faults.history import History
from faults.logwriters import LogWriter, present
from faults.plan import Outcome, Plan
from faults.reckoning import (
    Kept,
    Shown,
    check_events,
    check_index,
    check_logs,
    check_plain,
    check_seal,
    folded,
    read_session,
)
from faults.stores import Bucket, Directory, Stores
from faults.victim import SESSION, Victim
from faults.weather import WAYS
from faults.workload import Poster

NIGHT = 120.0
"""Seconds in which everything has to be well again."""
DISK = "4m"


@dataclass
class Node:
    victim: Victim
    writer: LogWriter
    poster: Poster
    disk: "bad_disk.BadDisk | None"
    small_disk: Path | None
    lost: bool = False
    must: dict[str, set[str]] = field(default_factory=dict)
    """Of a lost node: the events that were seen to be in the store before."""
    worst: int = 0

    @property
    def name(self) -> str:
        return self.victim.node


def live(seed: int, stores: Stores, keep: Path | None = None) -> Outcome:
    """`keep` is where everything is put that is left of a day that was not survived."""
    plan, began = Plan.of(seed), time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="rhd"))
    outcome = Outcome(plan)
    try:
        with Day(plan, home, stores, outcome) as day:
            try:
                day.live()
                outcome.problems += day.reckon()
            except Exception as failure:  # noqa: BLE001 - the other days go on
                outcome.problems.append(f"{type(failure).__name__}: {failure}")
            if outcome.problems and keep:
                day.save(keep / str(seed))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    outcome.seconds = time.monotonic() - began
    return outcome


class Day:
    def __init__(self, plan: Plan, home: Path, stores: Stores, outcome: Outcome) -> None:
        self._plan, self._home, self._outcome = plan, home, outcome
        self._dice = random.Random(f"hurts {plan.seed}")
        self._cluster = f"day-{plan.seed}"
        self._store: Directory | Bucket = stores.make(plan.store, home)
        self._sessions = [SESSION]
        self._over = contextlib.ExitStack()
        self._history = History(home, self._store.environment)
        self._nodes: list[Node] = []
        self._server = plan.has("server killed")
        self._watching = threading.Event()

    def __enter__(self) -> "Day":
        with contextlib.ExitStack() as over:
            over.callback(self._history.kill)
            over.callback(self._store.be, 0.0)
            for number in range(self._plan.nodes):
                self._nodes.append(self._node(number, over))
            for node in self._nodes:
                node.poster.others = [each.poster for each in self._nodes]
            self._over = over.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.close()

    def _node(self, number: int, over: contextlib.ExitStack) -> Node:
        seed = self._plan.seed
        name = random.Random(f"node {seed} {number}").randbytes(28).hex()
        small = over.enter_context(small_disk(DISK)) if self._hurt_so("full disk", number) else None
        spool = (small or self._home) / f"spool-{number}"
        flags = (
            f"--role={'Worker' if number else 'Head'}", "--log-interval=250ms", "--heartbeat-interval=1s",
            f"--event-rotation-interval={self._plan.rotation_ms}ms", f"--event-max-disk-mb={self._plan.budget_mb}",
            "--event-max-file-size-mb=1", "--grace-period=100s",
        )  # fmt: skip
        disk = None
        environment = {**self._store.environment, "FAULT_SEED": f"{seed}{number}"}
        if bad_disk.library():
            disk = bad_disk.BadDisk(self._home / f"control-{number}", spool)
            environment |= disk.environment
        victim = over.enter_context(Victim(*flags, spool=spool, node=name, cluster=self._cluster, **environment))
        writer, poster = LogWriter(f"logs {seed} {number}", name), Poster(f"posts {seed} {number}", name, victim.port)
        writer.move(victim.home / SESSION)
        poster.session = SESSION
        return Node(victim, writer, poster, disk, small)

    def _hurt_so(self, kind: str, number: int) -> bool:
        return any(what == kind and node == number for _, what, node in self._plan.hurts)

    # The day

    def live(self) -> None:
        if self._server:
            self._history.start()
        in_parallel([node.victim.start for node in self._nodes])
        watch = threading.Thread(target=self._watch)
        watch.start()
        busy = [worker for node in self._nodes for worker in (node.writer, node.poster)]
        for worker in busy:
            worker.start()
        try:
            began = time.monotonic()
            for at, what, number in self._plan.hurts:
                time.sleep(max(0.0, began + at - time.monotonic()))
                if not self._nodes[number].lost:
                    self._hurt(what, self._nodes[number])
            time.sleep(max(0.3, began + 3.5 - time.monotonic()))
        finally:
            for worker in busy:
                worker.stop()
            self._watching.set()
            watch.join()
        self._calm()
        self._end()

    def _watch(self) -> None:
        """How much of its disk each collector takes, at every moment."""
        while not self._watching.wait(0.05):
            for node in self._nodes:
                node.worst = max(node.worst, used(node.victim.spool))

    def _hurt(self, what: str, node: Node) -> None:
        hurts: dict[str, Callable[[Node], None]] = {
            "kill": self._kill, "kill and rotate": self._kill_and_rotate, "stop and start": self._stop_and_start,
            "full disk": self._full_disk, "failing disk": self._failing_disk, "slow disk": self._slow_disk,
            "store": self._bad_weather, "clock": self._clock, "Ray starts again": self._ray_starts_again,
            "node lost": self._node_lost, "server killed": self._server_killed, "fold killed": self._fold_killed,
        }  # fmt: skip
        hurts[what](node)

    def _count(self, what: str, times: int = 1) -> None:
        self._outcome.faults[what] += times

    def _kill(self, node: Node) -> None:
        node.victim.kill()
        tear(node.victim.spool, self._dice)
        node.victim.start()
        self._count("kill -9")

    def _kill_and_rotate(self, node: Node) -> None:
        """Log files are rotated while nobody looks."""
        node.victim.kill()
        node.writer.rotate_all()
        time.sleep(self._dice.uniform(0, 0.4))
        node.writer.rotate_all()
        node.victim.start()
        self._count("kill -9, and all logs rotated meanwhile")

    def _stop_and_start(self, node: Node) -> None:
        code = node.victim.stop_and_start()
        assert code == 0, f"it ended with {code}"
        self._count("SIGTERM and start")

    def _full_disk(self, node: Node) -> None:
        if node.small_disk is None:
            self._outcome.skipped.add("full disk: no small disk can be mounted here")
            return
        filler = node.small_disk / "somebody-elses"
        fill(filler)
        time.sleep(self._dice.uniform(0.2, 0.8))
        if self._dice.random() < 0.5:
            node.victim.kill()
            node.victim.start()
            self._count("kill -9 with a full disk")
        filler.unlink()
        self._count("full disk")

    def _failing_disk(self, node: Node) -> None:
        self._trouble(node, write_fails=100, write_short=100, sync_fails=100)

    def _slow_disk(self, node: Node) -> None:
        self._trouble(node, slow=400)

    def _trouble(self, node: Node, **shares: int) -> None:
        if node.disk is None:
            self._outcome.skipped.add("failing and slow disks: no compiler here")
            return
        node.disk.be(**shares)
        time.sleep(self._dice.uniform(0.3, 1.0))
        if self._dice.random() < 0.3:
            self._kill(node)
        node.disk.be()

    def _bad_weather(self, node: Node) -> None:
        ways = [way for way in WAYS if self._dice.random() < 0.4]
        self._store.be(self._dice.choice([0.3, 0.7, 1.0]), *ways)
        if self._dice.random() < 0.4:
            time.sleep(self._dice.uniform(0.2, 0.8))
            self._kill(node)
        time.sleep(self._dice.uniform(0.3, 1.0))
        if self._dice.random() < 0.7:
            self._store.be(0.0)

    def _clock(self, node: Node) -> None:
        if node.disk is None:
            self._outcome.skipped.add("clock jumps: no compiler here")
            return
        node.disk.set_clock(self._dice.choice([60, -60, 3600, -3600, 86400, -86400, 315360000, -315360000]))
        self._count("clock jump")

    def _ray_starts_again(self, node: Node) -> None:
        """On all nodes, one after the other, as in a cluster whose head went away."""
        session = f"session_2026-11-15_19-18-{8 + len(self._sessions):02d}_055078_{15551 + len(self._sessions)}"
        self._sessions.append(session)
        for each in self._nodes:
            if not each.lost:
                directory = each.victim.begin_session(session)
                each.writer.move(directory)
                each.poster.session = session
        self._count("Ray starts again")

    def _node_lost(self, node: Node) -> None:
        """What is in the store at that moment stays; the rest of this node goes with it."""
        if node is self._nodes[0]:
            return self._kill(node)
        self._calm()
        sizes, node.must = node.writer.sizes(), node.poster.known()
        deadline = time.monotonic() + NIGHT
        while not self._is_stored(node, sizes):
            assert time.monotonic() < deadline, (
                f"acknowledged events or logs did not leave the node:\n{node.victim.log()[-2000:]}"
            )
            time.sleep(0.3)
        time.sleep(self._dice.uniform(0.0, 0.5))
        node.victim.kill()
        node.lost = True
        node.writer.stop()
        node.poster.stop()
        node.victim.end_ray()
        for lives in node.writer.lives.values():
            for life in lives:
                life.settled, life.whole = sizes.get(id(life), 0) if life.whole else 0, False
        shutil.rmtree(node.victim.spool)
        self._count("node lost")
        return None

    def _is_stored(self, node: Node, sizes: dict[int, int]) -> bool:
        store = self._store.look()
        for session, lives in list(node.writer.lives.items()):
            kept = read_session(store, self._cluster, session)
            if node.must.get(session, set()) - kept.events.keys():
                return False
            streams = kept.streams.get(node.name, [])
            for life in list(lives):
                found = max((len(each.content) for each in streams if each.content.startswith(life.mark)), default=0)
                if life.whole and found < sizes.get(id(life), 0):
                    return False
        return True

    def _server_killed(self, node: Node) -> None:
        self._history.glance(self._cluster, self._sessions[-1])
        self._history.kill()
        self._history.start()
        self._count("server killed")

    def _fold_killed(self, node: Node) -> None:
        self._history.fold(self._cluster, killed=self._dice)
        self._count("fold killed")

    # The night

    def _calm(self) -> None:
        self._store.be(0.0)
        for node in self._nodes:
            if node.disk:
                node.disk.be()
                node.disk.set_clock(0)

    def _end(self) -> None:
        living = [node for node in self._nodes if not node.lost]
        if len(self._sessions) > 1 or self._dice.random() < 0.3:
            self._age_old_logs()
            for node in living:
                node.victim.kill()
            in_parallel([node.victim.start for node in living])
            self._until_old_sessions_are_stored(living)
        self._ends = [present(node.victim.home / self._sessions[-1] / "logs") for node in living]
        in_parallel([lambda node=node: _ended(node) for node in living])

    def _age_old_logs(self) -> None:
        """Logs of a session that is over are picked up when they have been quiet for a minute, which passes here."""
        for node in self._nodes:
            for session in self._sessions[:-1]:
                for path in (node.victim.home / session / "logs").rglob("*"):
                    then = path.stat().st_mtime - 120
                    os.utime(path, (then, then))

    def _until_old_sessions_are_stored(self, living: list[Node]) -> None:
        deadline = time.monotonic() + NIGHT
        while list(self._old_logs(living)):
            assert time.monotonic() < deadline, f"of a session that is over: {next(self._old_logs(living))}"
            time.sleep(0.2)

    def _old_logs(self, living: list[Node]) -> Iterator[str]:
        store = self._store.look()
        for session in self._sessions[:-1]:
            kept = read_session(store, self._cluster, session)
            for node in living:
                yield from check_logs(kept, node.name, node.writer.lives[session])

    def save(self, place: Path) -> None:
        """What is left of everything, for people to look at."""
        place.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self._home, place / "day", dirs_exist_ok=True)
        shutil.copytree(self._store.look(), place / "store", dirs_exist_ok=True)
        for node in self._nodes:
            shutil.copy(node.victim.home / "log", place / f"{node.name[:8]}.log")
            for session in self._sessions:
                logs = node.victim.home / session / "logs"
                if logs.exists():
                    shutil.copytree(logs, place / node.name[:8] / session, dirs_exist_ok=True)

    # The reckoning

    def reckon(self) -> list[str]:
        self._store.remove("claim")  # of a fold that was killed: it counts for a minute, which passes here
        self._history.fold(self._cluster)
        self._sum_up()
        problems = [
            f"{node.name[:8]} took {node.worst} bytes of its disk, of {self._plan.budget_mb} MB"
            for node in self._nodes
            if node.worst > self._plan.budget_mb * 10**6
        ]
        store = self._store.look()
        for session in self._sessions:
            kept = read_session(store, self._cluster, session)
            problems += [f"{session[-5:]}: {problem}" for problem in self._reckon(store, session, kept)]
        return problems

    def _reckon(self, store: Path, session: str, kept: Kept) -> Iterator[str]:
        sent: Counter[str] = sum((node.poster.sent for node in self._nodes), Counter())
        must = set().union(
            *((node.must if node.lost else node.poster.acked).get(session, set()) for node in self._nodes)
        )
        yield from check_events(kept, must, sent)
        last = session == self._sessions[-1]
        for node in self._nodes:
            yield from check_logs(kept, node.name, node.writer.lives.get(session, []))
            if not node.lost and last:
                yield from check_seal(kept, node.name, exact=not self._plan.has("failing disk", "full disk"))
        living = [node for node in self._nodes if not node.lost]
        for node, files in zip(living, self._ends, strict=True) if last else ():
            yield from check_plain(store, self._cluster, session, node.name, files)
        if last and not kept.ended:
            yield "there is no end.json"
        if kept.events:
            yield from check_index(store, self._cluster, session, kept)
            if self._server:
                yield from self._check_server(session, folded(kept))

    def _check_server(self, session: str, expected: Shown) -> Iterator[str]:
        """It may answer once more from the index that it had."""
        deadline = time.monotonic() + NIGHT
        while True:
            tasks = self._history.tasks(self._cluster, session)
            shown = {(task["task_id"], task["attempt_number"]): task["state"] for task in tasks}
            if len(tasks) != len(shown):
                yield "the server shows attempts twice"
            if shown == {key: value[0] for key, value in expected.items()}:
                return
            if time.monotonic() > deadline:
                yield f"the server shows {len(shown)} attempts, of {len(expected)}, or others"
                return
            time.sleep(0.3)

    def _sum_up(self) -> None:
        outcome = self._outcome
        for node in self._nodes:
            outcome.events += sum(map(len, node.poster.acked.values()))
            outcome.log_bytes += node.writer.written
            outcome.posts += node.poster.statuses.total()
            outcome.faults["batch sent again"] += node.poster.again
            outcome.faults.update({f"log {kind}": times for kind, times in node.writer.done.items()})
            if node.disk:
                outcome.faults.update(node.disk.counts())
        outcome.faults.update({f"store: {way}": times for way, times in self._store.hurt.items()})
        outcome.requests += self._store.requests
        outcome.faults = +outcome.faults


def _ended(node: Node) -> None:
    code = node.victim.end(NIGHT)
    assert code == 0, f"the collector ended with {code}:\n{node.victim.log()[-2000:]}"


def in_parallel(work: list[Callable[[], object]]) -> None:
    failures: list[BaseException] = []

    def one(each: Callable[[], object]) -> None:
        try:
            each()
        except BaseException as failure:  # noqa: BLE001 - raised below
            failures.append(failure)

    threads = [threading.Thread(target=one, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
