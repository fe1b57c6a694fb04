"""The collector's Prometheus metrics, and the totals that node seals report."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Telemetry:
    """Counters and gauges of one collector process. Attributes are named after their metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.quarantined_count = 0
        """Number of quarantined events of this process, in all sessions: most quarantined data has no readable session.
        """
        self.lost_count = 0
        """Number of events, dashboard responses and metrics objects that were accepted and then lost."""

        self.posts = self._counter("posts", "POSTs to /v1/events", "status")
        self.events_received = self._counter("events_received", "Events in request bodies that are valid JSON")
        self.events_acked = self._counter("events_acked", "Events acknowledged to Ray and synced to disk")
        self.received_bytes = self._counter("received_bytes", "Bytes of request bodies")
        self.quarantined = self._counter("quarantined", "Malformed request bodies, events and lines", "reason")
        self.refused = self._counter("refused", "POSTs refused with 401, 403, 408 or 503", "reason")
        self.uploads = self._counter("uploads", "Objects stored", "kind")
        self.upload_bytes = self._counter("upload_bytes", "Bytes of stored objects", "kind")
        self.upload_retries = self._counter("upload_retries", "Failed uploads that are retried", "kind")
        self.log_bytes_lost = self._counter(
            "log_bytes_lost", "Log bytes removed or truncated before they were read, or rewritten too often"
        )
        self.log_files_over_limit = self._gauge(
            "log_files_over_limit", "Log files not collected because the node has too many"
        )
        self.events_stored = self._counter("events_stored", "Events in stored objects")
        self.spool_damaged = self._counter("spool_damaged", "Torn or damaged spool records")
        self.dashboard_polls = self._counter("dashboard_polls", "Requests to the dashboard")
        self.dashboard_poll_failures = self._counter(
            "dashboard_poll_failures", "Requests to the dashboard that failed", "reason"
        )
        self.dashboard_responses_stored = self._counter(
            "dashboard_responses_stored", "Dashboard responses stored because they changed"
        )
        self.dashboard_responses_dropped = self._counter(
            "dashboard_responses_dropped", "Dashboard responses dropped because the spool was full"
        )
        self.export_lines = self._counter("export_lines", "Lines collected from Ray's export files")
        self.metrics_scrapes = self._counter("metrics_scrapes", "Scrapes of the node's Prometheus metrics")
        self.metrics_scrape_failures = self._counter(
            "metrics_scrape_failures", "Scrapes of the node's Prometheus metrics that failed", "reason"
        )
        self.metrics_series_dropped = self._counter(
            "metrics_series_dropped", "Series of the node's Prometheus metrics not stored because the node has too many"
        )
        self.task_failures = self._counter("task_failures", "Background tasks that failed and were restarted", "task")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"rayhistory_collector_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"rayhistory_collector_{name}", text, registry=self.registry)

    def add_gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Register a gauge whose value is read at each scrape."""
        self._gauge(name, text).set_function(value)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
