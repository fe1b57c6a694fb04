"""`docs/storage-layout.md`, made from the keys themselves: `python -m rayhistory.layout.doc`."""

import re
import sys
from collections.abc import Callable
from typing import NamedTuple

from rayhistory.layout.keys import JOB_EVENTS, NODE_EVENTS, SNAPSHOTS, V1_6, Layout
from rayhistory.layout.packs import pack_name
from rayhistory.layout.session import SessionRef

_INTRODUCTION = """\
# What is in the bucket

*Made from `src/rayhistory/layout/keys.py` by `make docs`; a test fails when the two differ.*

Every key may have a prefix (`--storage-root-dir`, or the path in `--store`). A session is `<namespace>`, `<cluster>`
and `<session>`; what created the cluster, a RayJob or a RayService, is an attribute of it. `<hour>` is
`YYYY-MM-DD-HH` in UTC, `<ns>` and `<ms>` are nanoseconds and milliseconds since 1970, `<node>` is a node's id in hex.

KubeRay's server reads what is in its own layout, and never looks below `ray-history/`. Ours reads everything here, of
every release, also when several have written parts of one session. Nothing is ever changed in place but `start.json`,
`alive`, and log files and answers of the dashboard that are written again when they have grown or changed.
"""

_REF = SessionRef("<namespace>", "<cluster>", "<session>")
_OWNED = SessionRef("<namespace>", "<cluster>", "<session>", "rayjob", "<owner>")
_NS = 1_794_770_300_123_456_789
_PATH = "<path>"
_STORED = {"2026-11-15-19": "<hour>", str(_NS): "<ns>", "1794770300123": "<ms>", "4242": "<n>", "AQAAAA==": "<base64>",
           "01000000": "<job>", "<namespace>_<rayjob>": "<namespace>_<owner>"}  # fmt: skip


class Row(NamedTuple):
    method: str
    """Of the layout, which makes the key."""
    key: Callable[[Layout], str]
    holds: str
    written: str
    read: str


COLLECTOR, HEAD, SERVER, CLI = "every collector", "the head's collector", "server", "`rayhistory`"
_FOLD = "the fold"
_OLD = Layout(as_of=V1_6)

SECTIONS: dict[str, list[Row]] = {
    "KubeRay's layout, from its v1.7": [
        Row("metadata_key", lambda layout: layout.metadata_key(_REF),
            "nothing: the session exists", HEAD, "server, KubeRay"),
        Row("metadata_key", lambda layout: layout.metadata_key(_OWNED),
            "the same of a cluster that a RayJob created (`rayservice` likewise)", HEAD, "server, KubeRay"),
        Row("events_key", lambda layout: layout.events_key(_REF, "<node>", NODE_EVENTS, _NS, compressed=True),
            "events of no job, one JSON object per line", COLLECTOR, f"{_FOLD}, KubeRay"),
        Row("events_key",
            lambda layout: layout.events_key(_REF, "<node>", f"{JOB_EVENTS}/01000000", _NS, compressed=True),
            "events of a job", COLLECTOR, f"{_FOLD}, KubeRay"),
        Row("log_key", lambda layout: layout.log_key(_REF, "<node>", _PATH),
            "a log file, whole, as it was at the end; `events/event_*.log` are cluster events", COLLECTOR,
            f"server, {_FOLD}, KubeRay"),
        Row("endpoint_key", lambda layout: layout.endpoint_key(_REF, "/<path>?<query>"),
            "the dashboard's last answer to a question, `/` in its path as `__`", HEAD,
            f"{_FOLD}, where there are no snapshots; KubeRay"),
        Row("log_key", lambda layout: layout.log_key(_OWNED, "<node>", _PATH),
            "of a RayJob all these have its name in the path", COLLECTOR, f"server, {_FOLD}, KubeRay"),
    ],
    "KubeRay's layout before v1.7, written with `--storage-layout=v1.6`": [
        Row("old_metadata_key", lambda layout: layout.old_metadata_key(_REF),
            "nothing: the session exists", HEAD, "server, KubeRay v1.6"),
        Row("events_key", lambda _: _OLD.events_key(_REF, "<node>", NODE_EVENTS, _NS, compressed=False),
            "events of no job, as one JSON array (KubeRay's own names have no `<ns>`)", COLLECTOR,
            f"{_FOLD}, KubeRay v1.6"),
        Row("events_key",
            lambda _: _OLD.events_key(_REF, "<node>", f"{JOB_EVENTS}/01000000", _NS, compressed=False),
            "events of a job, whose id is in base64", COLLECTOR, f"{_FOLD}, KubeRay v1.6"),
        Row("log_key", lambda _: _OLD.log_key(_REF, "<node>", _PATH),
            "a log file, whole", COLLECTOR, f"server, {_FOLD}, KubeRay v1.6"),
        Row("endpoint_key", lambda _: _OLD.endpoint_key(_REF, "/<path>?<query>"),
            "the dashboard's last answer to a question", HEAD, f"{_FOLD}, KubeRay v1.6"),
    ],
    "The shape of early field notes": [
        Row("noted_events_key", lambda layout: layout.noted_events_key(_REF),
            "all events of a session", "others", _FOLD),
        Row("noted_metadata_key", lambda layout: layout.noted_metadata_key(_REF),
            "that this is a session", "others", SERVER),
    ],
    "What KubeRay does not have": [
        Row("start_key", lambda layout: layout.start_key(_REF),
            "since when, on which node, with which Ray", f"{HEAD}, {CLI}", SERVER),
        Row("alive_key", lambda layout: layout.alive_key(_REF),
            "nothing: its time is the last sign of life; gone after a clean end", HEAD, f"{SERVER}, retention"),
        Row("end_key", lambda layout: layout.end_key(_REF),
            "when it ended and why; of a snapshot, when that was taken", f"{HEAD}, {CLI}", SERVER),
        Row("vanished_key", lambda layout: layout.vanished_key(_REF),
            "of a copy: when the session vanished, which the times of copied objects do not tell", "`rayhistory copy`",
            SERVER),
        Row("node_seal_key", lambda layout: layout.node_seal_key(_REF, "<node>"),
            "how much a node's collector received, stored and set aside", f"{COLLECTOR}, {CLI}", _FOLD),
        Row("events_key", lambda layout: layout.events_key(_REF, "<node>", SNAPSHOTS, _NS, compressed=True),
            "the dashboard's answers and lines of export files, each with its time", f"{HEAD}, {CLI}", _FOLD),
        Row("node_packs_prefix",
            lambda layout: f"{layout.node_packs_prefix(_REF, '<node>')}/{_placeholders(pack_name(7, 8, 9))}",
            "what was appended to all log files of a node since the pack before, and events that are in no object yet",
            COLLECTOR, f"server, {_FOLD}"),
        Row("metrics_key", lambda layout: layout.metrics_key(_REF, "<node>", 1_794_770_300_123),
            "samples of a node's metrics", COLLECTOR, SERVER),
        Row("manifest_key", lambda layout: layout.manifest_key(_REF, 4242),
            "that generation `<n>` of the index exists, and what it covers", _FOLD, f"{SERVER}, retention"),
        Row("index_file_key", lambda layout: layout.index_file_key(_REF, "4242-<build>", "<table>", 4242),
            "a part of a table of that generation", _FOLD, SERVER),
        Row("index_prefix", lambda layout: f"{layout.index_prefix(_REF)}/4242-<build>/covered.json",
            "which objects that generation was made from", _FOLD, _FOLD),
        Row("claim_key", lambda layout: layout.claim_key(_REF),
            "that somebody is folding the session", _FOLD, _FOLD),
        Row("pin_key", lambda layout: layout.pin_key(_REF),
            "nothing: retention leaves the session alone", "`rayhistory pin`", "retention"),
        Row("tombstone_key", lambda layout: layout.tombstone_key(_REF),
            "that the session is being removed, and is not to be shown", "`rayhistory retention`",
            f"{SERVER}, retention"),
    ],
}  # fmt: skip


def document() -> str:
    parts = [_INTRODUCTION]
    for title, rows in SECTIONS.items():
        lines = [f"## {title}", "", "| key | holds | written by | read by |", "|---|---|---|---|"]
        lines += [f"| `{shown(row)}` | {row.holds} | {row.written} | {row.read} |" for row in rows]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def shown(row: Row) -> str:
    key = row.key(Layout())
    for found, placeholder in _STORED.items():
        key = key.replace(found, placeholder)
    return key


def _placeholders(name: str) -> str:
    """A pack's folder and name, without the numbers of an example."""
    names = iter(["<folder>", "<number>", "<size>", "<end>"])
    return re.sub(r"\d+", lambda _: next(names), name)


if __name__ == "__main__":
    sys.stdout.write(document())
