"""Injects the faults of a schedule into a running cluster."""

import shutil
import time
from collections.abc import Callable

from faults.disks import fill_disk, write_torn_tail
from faults.simulated_cluster import ScenarioNode, SimulatedCluster
from faults.store_faults import STORE_FAULTS
from faults.verification import read_session

RECOVERY_TIMEOUT_S = 120.0


class FaultInjector:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster, self._rng, self._store = cluster, cluster.rng, cluster.store
        self._skipped = cluster.outcome.skipped
        self._injections: dict[str, Callable[[ScenarioNode], None]] = {
            "kill": self._kill, "kill and rotate": self._kill_and_rotate, "restart": self._restart,
            "full disk": self._full_disk, "failing disk": self._failing_disk, "slow disk": self._slow_disk,
            "store": self._store_faults, "clock": self._clock_jump, "Ray restart": self._ray_restart,
            "node lost": self._node_lost, "server killed": self._server_killed, "fold killed": self._fold_killed,
        }  # fmt: skip

    def inject(self, kind: str, node: ScenarioNode) -> None:
        """Inject a fault. One that could not be injected is reported with the outcome."""
        if node.lost:
            self._skipped.add(f"{kind}: its node was lost before")
            return
        before = self._injected()
        self._injections[kind](node)
        if self._injected() == before:
            self._skipped.add(f"{kind}: nothing met it")

    def _injected(self) -> int:
        """Return the number of faults that processes met so far."""
        disks = sum(sum(node.disk.counts().values()) for node in self._cluster.nodes if node.disk)
        return self._cluster.outcome.faults.total() + self._store.injected.total() + disks

    def _count(self, fault: str) -> None:
        self._cluster.outcome.faults[fault] += 1

    def _kill(self, node: ScenarioNode) -> None:
        node.collector.kill()
        write_torn_tail(node.collector.spool, self._rng)
        node.collector.start()
        self._count("kill -9")

    def _kill_and_rotate(self, node: ScenarioNode) -> None:
        """Rotate all log files twice while the collector is down."""
        node.collector.kill()
        node.writer.rotate_all()
        time.sleep(self._rng.uniform(0, 0.4))
        node.writer.rotate_all()
        node.collector.start()
        self._count("kill -9, and all logs rotated meanwhile")

    def _restart(self, node: ScenarioNode) -> None:
        code = node.collector.restart()
        assert code == 0, f"collector exited with status {code} after SIGTERM"
        self._count("SIGTERM and start")

    def _full_disk(self, node: ScenarioNode) -> None:
        if node.small_disk is None:
            self._skipped.add("full disk: cannot mount a small file system here")
            return
        filler = node.small_disk / "filler"
        fill_disk(filler)
        time.sleep(self._rng.uniform(0.2, 0.8))
        if self._rng.random() < 0.5:
            node.collector.kill()
            node.collector.start()
            self._count("kill -9 with a full disk")
        filler.unlink()
        self._count("full disk")

    def _failing_disk(self, node: ScenarioNode) -> None:
        self._disk_faults(node, write_fails=100, write_short=100, sync_fails=100)

    def _slow_disk(self, node: ScenarioNode) -> None:
        self._disk_faults(node, slow=400)

    def _disk_faults(self, node: ScenarioNode, **rates: int) -> None:
        if node.disk is None:
            self._skipped.add("failing and slow disks: no C compiler here")
            return
        node.disk.inject(**rates)
        time.sleep(self._rng.uniform(0.3, 1.0))
        if self._rng.random() < 0.3:
            self._kill(node)
        node.disk.clear()

    def _store_faults(self, node: ScenarioNode) -> None:
        kinds = [kind for kind in STORE_FAULTS if self._rng.random() < 0.4]
        self._store.inject(self._rng.choice([0.3, 0.7, 1.0]), *kinds)
        if self._rng.random() < 0.4:
            time.sleep(self._rng.uniform(0.2, 0.8))
            self._kill(node)
        time.sleep(self._rng.uniform(0.3, 1.0))
        if self._rng.random() < 0.7:
            self._store.clear()

    def _clock_jump(self, node: ScenarioNode) -> None:
        if node.disk is None:
            self._skipped.add("clock jumps: no C compiler here")
            return
        node.disk.set_clock(self._rng.choice([60, -60, 3600, -3600, 86400, -86400, 315360000, -315360000]))
        self._count("clock jump")

    def _ray_restart(self, node: ScenarioNode) -> None:
        """Start a new session on all nodes, one after the other, as after the loss of the head."""
        sessions = self._cluster.sessions
        session = f"session_2026-11-15_19-18-{8 + len(sessions):02d}_055078_{15551 + len(sessions)}"
        sessions.append(session)
        for each in self._cluster.remaining:
            directory = each.collector.begin_session(session)
            each.writer.move(directory)
            each.poster.session = session
        self._count("Ray restart")

    def _node_lost(self, node: ScenarioNode) -> None:
        """Lose a node with its disk, once everything acked so far is in the store. The head is only killed."""
        if node is self._cluster.nodes[0]:
            return self._kill(node)
        self._cluster.clear_faults()
        sizes, node.confirmed_events = node.writer.sizes(), node.poster.acked_so_far()
        deadline = time.monotonic() + RECOVERY_TIMEOUT_S
        while not self._is_stored(node, sizes):
            assert time.monotonic() < deadline, (
                f"acked events or logs did not leave the node:\n{node.collector.log()[-2000:]}"
            )
            time.sleep(0.3)
        time.sleep(self._rng.uniform(0.0, 0.5))
        node.collector.kill()
        node.lost = True
        node.writer.stop()
        node.poster.stop()
        node.collector.end_ray()
        for versions in node.writer.versions.values():
            for version in versions:
                version.confirmed_bytes = sizes.get(id(version), 0) if version.complete else 0
                version.complete = False
        shutil.rmtree(node.collector.spool)
        self._count("node lost")
        return None

    def _is_stored(self, node: ScenarioNode, sizes: dict[int, int]) -> bool:
        store = self._store.local_copy()
        for session, versions in list(node.writer.versions.items()):
            stored = read_session(store, self._cluster.name, session)
            if node.confirmed_events.get(session, set()) - stored.events.keys():
                return False
            contents = [stream.content for stream in stored.streams.get(node.name, [])]
            for version in list(versions):
                found = max((len(content) for content in contents if content.startswith(version.header)), default=0)
                if version.complete and found < sizes.get(id(version), 0):
                    return False
        return True

    def _server_killed(self, node: ScenarioNode) -> None:
        history = self._cluster.history
        history.open_and_disconnect(self._cluster.name, self._cluster.sessions[-1])
        history.kill()
        history.start()
        self._count("server killed")

    def _fold_killed(self, node: ScenarioNode) -> None:
        self._cluster.history.fold(self._cluster.name, kill_rng=self._rng)
        self._count("fold killed")
