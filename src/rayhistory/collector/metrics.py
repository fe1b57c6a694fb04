"""What the collector counts over its whole life, for Prometheus and for the seals."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.bad = 0
        """Everything that was set aside: what has no session cannot be counted with one."""
        self.lost = 0
        """Acknowledged or asked for, and yet not kept."""

        self.posts = self._counter("posts", "POSTs of events that were answered", "status")
        self.received = self._counter("events_received", "events in bodies that could be read")
        self.acked = self._counter("events_acked", "events that were on disk when Ray was told so")
        self.received_bytes = self._counter("received_bytes", "bytes of bodies received")
        self.set_aside = self._counter("set_aside", "bodies and events that could not be understood", "reason")
        self.refused = self._counter("refused", "POSTs answered with 503 or 403", "reason")
        self.uploads = self._counter("uploads", "objects that the store confirmed", "kind")
        self.upload_bytes = self._counter("upload_bytes", "bytes that the store confirmed", "kind")
        self.upload_retries = self._counter(
            "upload_retries", "writes to the store that failed and were repeated", "kind"
        )
        self.log_lost = self._counter(
            "log_bytes_lost", "bytes of log files that were removed or cut before they were read, or too often"
        )
        self.log_beyond = Gauge(
            "rayhistory_collector_log_files_beyond",
            "log files that are not followed because there are too many",
            registry=self.registry,
        )
        self.stored = self._counter("events_stored", "events in objects that the store confirmed")
        self.damaged = self._counter("spool_damaged", "spool records that were torn or damaged")
        self.snapshot_requests = self._counter("snapshot_requests", "questions to the dashboard")
        self.snapshot_failures = self._counter(
            "snapshot_failures", "questions that the dashboard did not answer", "reason"
        )
        self.snapshots_kept = self._counter("snapshots_kept", "answers of the dashboard that had changed")
        self.snapshots_dropped = self._counter("snapshots_dropped", "answers for which the spool had no room")
        self.export_lines = self._counter("export_lines", "lines of Ray's export files that were kept")
        self.metrics_samples = self._counter("metrics_samples", "times that the node's metrics were sampled")
        self.metrics_failures = self._counter(
            "metrics_failures", "times that the node's metrics could not be had", "reason"
        )
        self.metrics_dropped = self._counter("metrics_dropped", "series of the node's metrics that were not kept")
        self.task_failures = self._counter("task_failures", "background work that failed and was begun again", "task")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"rayhistory_collector_{name}", text, labels, registry=self.registry)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A value that is read when somebody asks."""
        Gauge(f"rayhistory_collector_{name}", text, registry=self.registry).set_function(value)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
