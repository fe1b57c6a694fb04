"""Generates `docs/reference/storage-layout.md` from the keys: `python -m rayhistory.sessions.layout_reference`."""

import re
import sys
from collections.abc import Callable
from typing import NamedTuple

from rayhistory.packs.pack_format import pack_name
from rayhistory.sessions.keys import DASHBOARD_RESPONSES, Layout
from rayhistory.sessions.kuberay_keys import JOB_EVENTS, NODE_EVENTS, V1_6
from rayhistory.sessions.ref import SessionRef

_INTRODUCTION = """\
# Storage layout

*Generated from `src/rayhistory/sessions/keys.py` by `make docs`; a test fails when the two differ.*

This page lists the keys of all objects in the store: their content, and which program writes and reads them.

- All keys begin with the prefix of the store, if it has one (`--storage-root-dir`, or the path in `--store`).
- `<namespace>`, `<cluster>` and `<session>` identify a session. `<owner>` is its RayJob or RayService.
- `<node>` is a node id in hex. `<hour>` is `YYYY-MM-DD-HH` in UTC. `<ns>` and `<ms>` are nanoseconds and milliseconds
  since 1970.
- *Fold* is the process that builds the tables (the index) of a session. *Product builder* is the process that builds
  other derived data, such as the diagnosis. Other words: [glossary](glossary.md).

KubeRay's history server reads only KubeRay's layout and never `ray-history/`. Our server reads the layouts of all
releases, even if a session has objects of several. It reads the legacy layout only with `--read-legacy-layout`.

Most objects are never changed. Exceptions are `start.json`, `alive`, seals, leases, metrics of the current hour, and
log files and dashboard responses in KubeRay's layout. These are overwritten when their content has changed.
"""

_REF = SessionRef("<namespace>", "<cluster>", "<session>")
_OWNED = SessionRef("<namespace>", "<cluster>", "<session>", "rayjob", "<owner>")
_NS = 1_794_770_300_123_456_789
_PATH = "<path>"
_PLACEHOLDERS = {
    "2026-11-15-19": "<hour>",
    str(_NS): "<ns>",
    "1794770300123": "<ms>",
    "4242": "<n>",
    "AQAAAA==": "<base64>",
    "01000000": "<job>",
    "<namespace>_<rayjob>": "<namespace>_<owner>",
}


class Row(NamedTuple):
    method: str
    """The method of `Layout` that returns the key."""
    key: Callable[[Layout], str]
    holds: str
    written: str
    read: str


COLLECTOR, HEAD, SERVER, CLI = "every collector", "head's collector", "server", "`rayhistory`"
_FOLD = "fold"
_V1_6_LAYOUT = Layout(release=V1_6)

SECTIONS: dict[str, list[Row]] = {
    "KubeRay layout since v1.7": [
        Row("metadata_key", lambda layout: layout.metadata_key(_REF),
            "empty: the session exists", HEAD, "server, KubeRay"),
        Row("metadata_key", lambda layout: layout.metadata_key(_OWNED),
            "the same for a cluster of a RayJob (or `rayservice`)", HEAD, "server, KubeRay"),
        Row("events_key", lambda layout: layout.events_key(_REF, "<node>", NODE_EVENTS, _NS, compressed=True),
            "events without a job, one JSON object per line", COLLECTOR, f"{_FOLD}, KubeRay"),
        Row("events_key",
            lambda layout: layout.events_key(_REF, "<node>", f"{JOB_EVENTS}/01000000", _NS, compressed=True),
            "events of one job", COLLECTOR, f"{_FOLD}, KubeRay"),
        Row("log_key", lambda layout: layout.log_key(_REF, "<node>", _PATH),
            "a complete log file, written at the end; `events/event_*.log` are cluster events", COLLECTOR,
            f"server, {_FOLD}, KubeRay"),
        Row("endpoint_key", lambda layout: layout.endpoint_key(_REF, "/<path>?<query>"),
            "last dashboard response of a path, with `__` for `/`", HEAD,
            f"{_FOLD}, if there are no `ray-history/snapshots`; KubeRay"),
        Row("log_key", lambda layout: layout.log_key(_OWNED, "<node>", _PATH),
            "the same for a cluster of a RayJob: its name is part of all these keys", COLLECTOR,
            f"server, {_FOLD}, KubeRay"),
    ],
    "KubeRay layout before v1.7, written with `--storage-layout=v1.6`": [
        Row("v1_6_metadata_key", lambda layout: layout.v1_6_metadata_key(_REF),
            "empty: the session exists", HEAD, "server, KubeRay v1.6"),
        Row("events_key", lambda _: _V1_6_LAYOUT.events_key(_REF, "<node>", NODE_EVENTS, _NS, compressed=False),
            "events without a job, as one JSON array (KubeRay's own names have no `<ns>`)", COLLECTOR,
            f"{_FOLD}, KubeRay v1.6"),
        Row("events_key",
            lambda _: _V1_6_LAYOUT.events_key(_REF, "<node>", f"{JOB_EVENTS}/01000000", _NS, compressed=False),
            "events of one job, with its id in base64", COLLECTOR, f"{_FOLD}, KubeRay v1.6"),
        Row("log_key", lambda _: _V1_6_LAYOUT.log_key(_REF, "<node>", _PATH),
            "a complete log file", COLLECTOR, f"server, {_FOLD}, KubeRay v1.6"),
        Row("endpoint_key", lambda _: _V1_6_LAYOUT.endpoint_key(_REF, "/<path>?<query>"),
            "last dashboard response of a path", HEAD, f"{_FOLD}, KubeRay v1.6"),
    ],
    "Legacy layout, read with `--read-legacy-layout`": [
        Row("legacy_events_key", lambda layout: layout.legacy_events_key(_REF),
            "all events of a session", "other tools", _FOLD),
        Row("legacy_metadata_key", lambda layout: layout.legacy_metadata_key(_REF),
            "any content: the session exists", "other tools", SERVER),
    ],
    "Our own keys": [
        Row("start_key", lambda layout: layout.start_key(_REF),
            "start time, head node and Ray version", f"{HEAD}, {CLI}", SERVER),
        Row("alive_key", lambda layout: layout.alive_key(_REF),
            "empty: its modification time is the heartbeat; deleted at a clean end", HEAD, f"{SERVER}, retention"),
        Row("end_key", lambda layout: layout.end_key(_REF),
            "time and reason of the end; for a snapshot, when it was taken", f"{HEAD}, {CLI}", SERVER),
        Row("vanished_key", lambda layout: layout.vanished_key(_REF),
            "for a copy of a vanished session: the time of its last heartbeat", "`rayhistory copy`",
            SERVER),
        Row("first_stored_key", lambda layout: layout.first_stored_key(_REF, 1_794_770_300_123),
            "empty, for an import or a copy: the time by which it is ordered among other sessions",
            CLI, SERVER),
        Row("node_seal_key", lambda layout: layout.node_seal_key(_REF, "<node>"),
            "seal: events that a node's collector received, stored, quarantined and dropped",
            f"{COLLECTOR}, {CLI}", _FOLD),
        Row("events_key", lambda layout: layout.events_key(_REF, "<node>", DASHBOARD_RESPONSES, _NS, compressed=True),
            "dashboard responses and lines of export files, with their times", f"{HEAD}, {CLI}", _FOLD),
        Row("node_packs_prefix",
            lambda layout: f"{layout.node_packs_prefix(_REF, '<node>')}/{_pack_placeholders(pack_name(7, 8, 9))}",
            "pack: bytes appended to all log files of a node since the previous pack, and events that are in no event "
            "object yet",
            COLLECTOR, f"server, {_FOLD}"),
        Row("node_packs_prefix",
            lambda layout: f"{layout.node_packs_prefix(_REF, '<node>')}/compacted/<first>-<last>-<size>-<token>.packs",
            "old packs, one after the other", "`rayhistory store compact`", f"server, {_FOLD}"),
        Row("node_packs_prefix",
            lambda layout: f"{layout.node_packs_prefix(_REF, '<node>')}/compacted/<first>-<last>-<size>-<token>.json",
            "record: where each of these packs starts, and when it was stored", "`rayhistory store compact`",
            f"server, {_FOLD}"),
        Row("metrics_key", lambda layout: layout.metrics_key(_REF, "<node>", 1_794_770_300_123),
            "metric samples of one node", COLLECTOR, SERVER),
        Row("grafana_dashboards_key", lambda layout: layout.grafana_dashboards_key(_REF),
            "Grafana dashboards that the head wrote", HEAD, SERVER),
        Row("manifest_key", lambda layout: layout.manifest_key(_REF, 4242),
            "manifest of generation `<n>` of the index", _FOLD, f"{SERVER}, retention"),
        Row("index_file_key", lambda layout: layout.index_file_key(_REF, "4242-<build>", "<table>", 4242),
            "one file of a table, written for that generation and used by later ones", _FOLD, SERVER),
        Row("covered_key", lambda layout: layout.covered_key(_REF, "4242-<build>"),
            "the objects that the generation covers", _FOLD, _FOLD),
        Row("lease_key", lambda layout: layout.lease_key(_REF),
            "lease: a server is folding the session", _FOLD, _FOLD),
        Row("product_manifest_key", lambda layout: layout.product_manifest_key(_REF, "<product>", 4242),
            "manifest of generation `<n>` of a product, which is derived from the tables", "product builder",
            SERVER),
        Row("product_file_key", lambda layout: layout.product_file_key(_REF, "<product>", "4242-<build>", "<file>"),
            "one file of a product", "product builder", SERVER),
        Row("product_lease_key", lambda layout: layout.product_lease_key(_REF, "<product>"),
            "lease: a server is building the product", "product builder", "product builder"),
        Row("runs_manifest_key", lambda layout: layout.runs_manifest_key(4242),
            "version `<n>` of the run table: its parts", "server", SERVER),
        Row("run_part_key", lambda layout: layout.run_part_key("<part>"),
            "summaries of many sessions, one row each", "server", SERVER),
        Row("run_inbox_key", lambda layout: layout.run_inbox_key(_REF, 4242, "<token>"),
            "the summary of a session that is in no part yet", "product builder", SERVER),
        Row("runs_lease_key", lambda layout: layout.runs_lease_key(),
            "lease: a server is compacting the run table", "server", "server"),
        Row("outbox_key", lambda layout: layout.outbox_key("<id>-<rule>"),
            "a notification to be sent", "server", "server"),
        Row("sent_key", lambda layout: layout.sent_key("<id>-<rule>"),
            "mark of a sent notification", "server", "server"),
        Row("notifications_started_key", lambda layout: layout.notifications_started_key(),
            "sessions that had ended when notifications were turned on", "server", "server"),
        Row("notifications_lease_key", lambda layout: layout.notifications_lease_key(),
            "lease: a server is sending notifications", "server", "server"),
        Row("run_quarantine_key", lambda layout: layout.run_quarantine_key(f"{layout.runs_prefix()}/<key>"),
            "a summary or part that could not be read", "server", "people"),
        Row("pin_key", lambda layout: layout.pin_key(_REF),
            "empty: pin, excludes the session from retention", "`rayhistory pin`", "retention"),
        Row("tombstone_key", lambda layout: layout.tombstone_key(_REF),
            "tombstone: the session is being removed, and hidden", "`rayhistory retention`",
            f"{SERVER}, retention"),
    ],
}  # fmt: skip


def document() -> str:
    parts = [_INTRODUCTION]
    for title, rows in SECTIONS.items():
        lines = [f"## {title}", "", "| key | holds | written by | read by |", "|---|---|---|---|"]
        lines += [f"| `{displayed_key(row)}` | {row.holds} | {row.written} | {row.read} |" for row in rows]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def displayed_key(row: Row) -> str:
    key = row.key(Layout())
    for found, placeholder in _PLACEHOLDERS.items():
        key = key.replace(found, placeholder)
    return key


def _pack_placeholders(name: str) -> str:
    """Replace the numbers of an example pack name by placeholders."""
    names = iter(["<folder>", "<number>", "<size>", "<end>"])
    return re.sub(r"\d+", lambda _: next(names), name)


if __name__ == "__main__":
    sys.stdout.write(document())
