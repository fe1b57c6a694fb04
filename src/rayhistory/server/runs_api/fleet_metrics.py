"""Figures of the fleet as Prometheus metrics of the server.

The metrics endpoint has no sign-in. So namespaces are labels only if everybody may see everything.
"""

import asyncio
import logging
import re
import time

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.requests import Request

from rayhistory.errors import RayHistoryError
from rayhistory.runs.fleet import MAX_DAYS, FleetFailure, FleetFigures, fleet_of
from rayhistory.server.http.view_routes import resolver_of
from rayhistory.server.runs_api.run_listing import RunListing

log = logging.getLogger(__name__)

_MAX_AGE_S = 15.0
_RECENT = "sessions that started today or yesterday (UTC)"
_GAUGES = {
    "lost_nodes": ("rayhistory_fleet_lost_nodes", f"nodes lost in {_RECENT}"),
    "oom_kills": ("rayhistory_fleet_oom_kills", f"workers killed for memory in {_RECENT}"),
    "cpu_hours": ("rayhistory_fleet_cpu_hours", f"CPU-hours of the nodes in {_RECENT}"),
    "idle_cpu_hours": ("rayhistory_fleet_idle_cpu_hours", f"unused CPU-hours of the nodes in {_RECENT}"),
    "gpu_hours": ("rayhistory_fleet_gpu_hours", f"GPU-hours of the nodes in {_RECENT}"),
    "idle_gpu_hours": ("rayhistory_fleet_idle_gpu_hours", f"unused GPU-hours of the nodes in {_RECENT}"),
}


async def fleet_metrics(request: Request, runs: RunListing, *, by_namespace: bool) -> bytes:
    """Return the fleet's metrics as text. If the store cannot be read, return only the metric `rayhistory_fleet_up`."""
    registry = CollectorRegistry()
    up = Gauge("rayhistory_fleet_up", "1 if the figures of the fleet could be read", registry=registry)
    try:
        rows = await runs.table.load(max_age_s=_MAX_AGE_S)
        existing = {entry.ref.identity for entry in await resolver_of(request).catalog.entries()}
    except RayHistoryError as error:
        log.warning("cannot read the run table, fleet metrics are missing", extra={"reason": str(error)})
        return generate_latest(registry)
    up.set(1)
    summaries = [each for identity, each in rows.summaries.items() if runs.keeps_removed or identity in existing]
    now_ms = int(time.time() * 1000)
    recent, everything = [await asyncio.to_thread(fleet_of, summaries, now_ms, days) for days in (2, MAX_DAYS)]
    labels = ["namespace"] if by_namespace else []
    groups = recent.namespaces if by_namespace else [recent.total]
    _add_runs(registry, groups, labels)
    _add_failures(registry, recent.failures, with_fingerprints=by_namespace)
    for field, (name, text) in _GAUGES.items():
        gauge = Gauge(name, text, labels, registry=registry)
        for group in groups:
            _labelled(gauge, group, labels).set(getattr(group, field))
    stored = Gauge("rayhistory_fleet_stored_bytes", "size of sessions of the last 92 days", labels, registry=registry)
    for group in everything.namespaces if by_namespace else [everything.total]:
        _labelled(stored, group, labels).set(group.size_bytes + group.index_bytes)
    Gauge("rayhistory_runs_quarantined", "summaries that could not be read", registry=registry).set(rows.quarantined)
    return generate_latest(registry)


def _add_runs(registry: CollectorRegistry, groups: list[FleetFigures], labels: list[str]) -> None:
    text = f"runs in {_RECENT}"
    gauge = Gauge("rayhistory_fleet_runs", text, [*labels, "status"], registry=registry)
    for group in groups:
        other = group.runs - group.succeeded - group.failed
        for status, count in (("succeeded", group.succeeded), ("failed", group.failed), ("other", other)):
            gauge.labels(*([group.namespace] if labels else []), status).set(count)


def _add_failures(registry: CollectorRegistry, failures: list[FleetFailure], *, with_fingerprints: bool) -> None:
    """Add the most frequent failures. Their headlines contain text of clusters, so not everybody may see them."""
    text = f"failed runs by cause in {_RECENT}, the most frequent causes"
    labels = ["code", "fingerprint"] if with_fingerprints else ["code"]
    gauge = Gauge("rayhistory_fleet_failures", text, labels, registry=registry)
    for failure in failures:
        code = failure.code if re.fullmatch("[a-z_]{1,40}", failure.code) else "other"
        gauge.labels(*([code, failure.fingerprint or ""] if with_fingerprints else [code])).inc(failure.runs)


def _labelled(gauge: Gauge, group: FleetFigures, labels: list[str]) -> Gauge:
    return gauge.labels(group.namespace) if labels else gauge
