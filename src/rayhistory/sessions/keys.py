"""The one module that knows every key.

KubeRay's current layout (its v1.7) for what it has too, and our own tree `ray-history/` beside it for what it has not:

    cluster-metadata/<kind>/<ns>_[<owner>_]<cluster>/<session>          empty: the session exists
    cluster-history/<kind>/<ns>/[<owner>/]<cluster>/<session>/
        <node>/node_events/<node>-<hour>-<ns>.jsonl[.gz]                 events of no job
        <node>/job_events/<job>/<node>-<hour>-<ns>.jsonl[.gz]            events of a job
        <node>/logs/<path>                                               log files, whole
        fetched_endpoints/restful__…                                     the dashboard's last answers
    metadir/<cluster>_<ns>/<session>, <cluster>_<ns>/<session>/…         the same in KubeRay's v1.6, written on request
    <ns>/<cluster>/<session>/events.log, metadata.json                   as early field notes had it, only read
    ray-history/sessions/<ns>/<cluster>/<session>/                       start.json, alive, end.json or vanished.json
    ray-history/seals/<ns>/<cluster>/<session>/<node>.json               what the collector of a node has counted
    ray-history/snapshots/<ns>/<cluster>/<session>/<node>-<hour>-<ns>.jsonl[.gz]
                                                                         the dashboard's answers, each with its time
    ray-history/logs/<ns>/<cluster>/<session>/<node>/<folder>/<number>-….pack
                                                                         appended bytes of log files, see `packs`
    ray-history/metrics/<ns>/<cluster>/<session>/<node>/<ms>.msgpack.zst
                                                                         samples of a node's metrics, see `metrics`
    ray-history/index/<ns>/<cluster>/<session>/                          manifest-<n>.json, claim,
                                                                         <n>-<build>/<table>.<part>.parquet
    ray-history/pins/<ns>/<cluster>/<session>                            empty: retention leaves the session alone
    ray-history/tombstones/<ns>/<cluster>/<session>                      the session is being removed, and not shown
"""

import base64
import functools
import re
from datetime import UTC, datetime
from pathlib import PurePosixPath

import msgspec

from rayhistory.layout.session import SessionRef, is_safe_component, is_session_name
from rayhistory.settings import parse_name

NODE_EVENTS = "node_events"
JOB_EVENTS = "job_events"
SNAPSHOTS = "snapshots"
V1_6, V1_7 = "v1.6", "v1.7"

_EVENT_FILE = re.compile(r"-\d{4}-\d{2}-\d{2}-\d{2}(-\d+)?(\.jsonl)?(\.gz)?\Z")
_METRICS = re.compile(r"([0-9]{13,15})\.msgpack\.zst\Z")
_MANIFEST = re.compile(r"manifest-([0-9]+)\.json\Z")
CLAIM = "claim"


class EventObject(msgspec.Struct, frozen=True):
    """An object that holds events or snapshots, as a listing shows it."""

    key: str
    size: int
    node: str


class Layout:
    """Reads what every release wrote; `as_of` says as which release of KubeRay's collector it writes."""

    def __init__(self, root: str = "", as_of: str = V1_7) -> None:
        self.root = "/".join(part for part in root.split("/") if part)
        self.old = as_of == V1_6

    def _join(self, *parts: str) -> str:
        return "/".join(part for part in (self.root, *parts) if part)

    def moved(self, key: str, to: "Layout") -> str:
        """The same object's key in another store, which may have another prefix."""
        return to._join(key.removeprefix(self.root + "/") if self.root else key)

    # KubeRay's trees

    def metadata_prefix(self) -> str:
        return self._join("cluster-metadata")

    def metadata_key(self, ref: SessionRef) -> str:
        if self.old:
            return self.old_metadata_key(ref)
        kind, owner = ref.owner_kind or "raycluster", ref.owner_name
        names = [ref.namespace, owner, ref.cluster] if owner else [ref.namespace, ref.cluster]
        return self._join("cluster-metadata", kind, "_".join(names), ref.session)

    def parse_metadata_key(self, key: str) -> SessionRef | None:
        """None for what is not a session's key: folder markers and things of others."""
        prefix = self.metadata_prefix() + "/"
        parts = key.removeprefix(prefix).split("/") if key.startswith(prefix) else []
        if len(parts) != 3 or not is_session_name(parts[2]):
            return None
        kind, names = parts[0].lower(), parts[1].split("_")
        if not all(_is_name(name) for name in names):
            return None
        if kind == "raycluster" and len(names) == 2:
            return SessionRef(names[0], names[1], parts[2])
        if kind in {"rayjob", "rayservice"} and len(names) == 3:
            return SessionRef(names[0], names[2], parts[2], kind, names[1])
        return None

    def history_prefix(self, ref: SessionRef) -> str:
        owner = [ref.owner_name] if ref.owner_name else []
        return self._join(
            "cluster-history", ref.owner_kind or "raycluster", ref.namespace, *owner, ref.cluster, ref.session
        )

    def events_key(self, ref: SessionRef, node: str, category: str, created_ns: int, *, compressed: bool) -> str:
        """Where a rotated spool file goes; the category is node_events, job_events/<job> or snapshots. v1.6 took only
        names that end with the hour; what is before it tells the files of an hour apart."""
        hour = datetime.fromtimestamp(created_ns // 10**9, UTC).strftime("%Y-%m-%d-%H")
        name = f"{node}-{hour}-{created_ns}.jsonl" + (".gz" if compressed else "")
        if category == SNAPSHOTS:
            return f"{self.snapshots_prefix(ref)}/{name}"
        if self.old:
            return f"{self.old_history_prefix(ref)}/{_old_category(category)}/{node}-{created_ns}-{hour}"
        return f"{self.history_prefix(ref)}/{node}/{category}/{name}"

    def parse_event_key(self, ref: SessionRef, key: str, size: int) -> EventObject | None:
        """An object below the session's history that holds events; None for logs and everything else."""
        parts = key.removeprefix(self.history_prefix(ref) + "/").split("/")
        if len(parts) < 3 or not _EVENT_FILE.search(parts[-1]):
            return None
        if (parts[1] == NODE_EVENTS and len(parts) == 3) or (parts[1] == JOB_EVENTS and len(parts) >= 4):
            return EventObject(key, size, parts[0])
        return None

    def logs_prefix(self, ref: SessionRef, node: str) -> str:
        return f"{self.history_prefix(ref)}/{node}/logs"

    def log_key(self, ref: SessionRef, node: str, path: str) -> str:
        prefix = self.old_logs_prefix(ref, node) if self.old else self.logs_prefix(ref, node)
        return f"{prefix}/{PurePosixPath(path)}"

    def endpoint_key(self, ref: SessionRef, uri: str) -> str:
        prefix = self.old_endpoints_prefixes(ref)[0] if self.old else self.endpoints_prefix(ref)
        return f"{prefix}/restful__{uri.strip('/').replace('/', '__')}"

    def endpoints_prefix(self, ref: SessionRef) -> str:
        return f"{self.history_prefix(ref)}/fetched_endpoints"

    # What KubeRay wrote before its v1.7

    def old_metadata_prefix(self) -> str:
        return self._join("metadir")

    def old_metadata_key(self, ref: SessionRef) -> str:
        return self._join("metadir", f"{ref.cluster}_{ref.namespace}", ref.session)

    def parse_old_metadata_key(self, key: str) -> SessionRef | None:
        """`metadir/<cluster>_<namespace>/<session>`: the cluster came first then, and there were no owners."""
        parts = key.removeprefix(self.old_metadata_prefix() + "/").split("/")
        names = parts[0].split("_")
        if len(parts) != 2 or len(names) != 2 or not is_session_name(parts[1]) or not all(map(_is_name, names)):
            return None
        return SessionRef(names[1], names[0], parts[1])

    def old_history_prefix(self, ref: SessionRef) -> str:
        """Below it: node_events/, job_events/<base64>/, logs/<node>/ (in that order) and fetched_endpoints/."""
        return self._join(f"{ref.cluster}_{ref.namespace}", ref.session)

    def old_endpoints_prefixes(self, ref: SessionRef) -> list[str]:
        prefix = self.old_history_prefix(ref)
        return [f"{prefix}/fetched_endpoints", self._join(f"{ref.cluster}_{ref.namespace}", "meta", ref.session)]

    def old_logs_prefix(self, ref: SessionRef, node: str = "") -> str:
        prefix = f"{self.old_history_prefix(ref)}/logs"
        return f"{prefix}/{node}" if node else prefix

    # What early field notes show: all events of a session in one object

    def noted_prefix(self, *names: str) -> str:
        """Below it is a folder per namespace, in it one per cluster, and in it one per session."""
        return self._join(*names)

    def is_noted_name(self, name: str) -> bool:
        """Whether a folder can be that of a namespace or cluster there: those of the other layouts cannot."""
        return name not in {"cluster-metadata", "cluster-history", "metadir", "ray-history"} and _is_name(name)

    def noted_events_key(self, ref: SessionRef) -> str:
        return f"{self.noted_prefix(*ref.identity)}/events.log"

    def noted_metadata_key(self, ref: SessionRef) -> str:
        return f"{self.noted_prefix(*ref.identity)}/metadata.json"

    # Our tree

    def sessions_prefix(self) -> str:
        return self._join("ray-history", "sessions")

    def scratch_prefix(self) -> str:
        """Where a check may write and delete."""
        return self._join("ray-history", "doctor")

    def _own(self, tree: str, ref: SessionRef) -> str:
        return self._join("ray-history", tree, ref.path)

    def start_key(self, ref: SessionRef) -> str:
        return self._own("sessions", ref) + "/start.json"

    def alive_key(self, ref: SessionRef) -> str:
        return self._own("sessions", ref) + "/alive"

    def end_key(self, ref: SessionRef) -> str:
        return self._own("sessions", ref) + "/end.json"

    def vanished_key(self, ref: SessionRef) -> str:
        return self._own("sessions", ref) + "/vanished.json"

    def node_seal_key(self, ref: SessionRef, node: str) -> str:
        return f"{self.node_seals_prefix(ref)}/{node}.json"

    def node_seals_prefix(self, ref: SessionRef) -> str:
        """Apart from the records, because those of all sessions are listed again and again, and nodes are many."""
        return self._own("seals", ref)

    def parse_record_key(self, key: str) -> tuple[SessionRef, str] | None:
        """The session and the record's name (start.json, alive, …) behind a key of the sessions tree."""
        parts = key.removeprefix(self.sessions_prefix() + "/").split("/")
        if len(parts) != 4 or not (_is_name(parts[0]) and _is_name(parts[1]) and is_session_name(parts[2])):
            return None
        return SessionRef(parts[0], parts[1], parts[2]), parts[3]

    def own_prefix(self) -> str:
        """Below it is a folder per tree, and in most of them `<namespace>/<cluster>/<session>`."""
        return self._join("ray-history")

    def is_tree_of_sessions(self, tree: str) -> bool:
        """Whether what lies there belongs to sessions, also in trees that a later release has added."""
        return tree not in {"pins", "tombstones", "doctor"}

    def own_tree_prefix(self, tree: str, ref: SessionRef) -> str:
        return self._own(tree, ref)

    def pins_prefix(self) -> str:
        return self._join("ray-history", "pins")

    def pin_key(self, ref: SessionRef) -> str:
        return self._own("pins", ref)

    def tombstones_prefix(self) -> str:
        return self._join("ray-history", "tombstones")

    def tombstone_key(self, ref: SessionRef) -> str:
        return self._own("tombstones", ref)

    def parse_mark_key(self, key: str) -> SessionRef | None:
        """The session behind the key of a pin or a tombstone."""
        parts = key.removeprefix(self.own_prefix() + "/").split("/")
        if len(parts) != 4 or not (_is_name(parts[1]) and _is_name(parts[2]) and is_session_name(parts[3])):
            return None
        return SessionRef(parts[1], parts[2], parts[3])

    def snapshots_prefix(self, ref: SessionRef) -> str:
        return self._own("snapshots", ref)

    def parse_snapshot_key(self, key: str, size: int) -> EventObject | None:
        name = key.rpartition("/")[2]
        match = _EVENT_FILE.search(name)
        return EventObject(key, size, name[: match.start()]) if match else None

    def packs_prefix(self, ref: SessionRef) -> str:
        """Below it is a folder per node."""
        return self._own("logs", ref)

    def node_packs_prefix(self, ref: SessionRef, node: str) -> str:
        return f"{self.packs_prefix(ref)}/{node}"

    def metrics_prefix(self, ref: SessionRef) -> str:
        """Below it is a folder per node."""
        return self._own("metrics", ref)

    def metrics_key(self, ref: SessionRef, node: str, first_ms: int) -> str:
        return f"{self.metrics_prefix(ref)}/{node}/{first_ms:013d}.msgpack.zst"

    def parse_metrics_key(self, ref: SessionRef, key: str) -> tuple[str, int] | None:
        """The node, and the time at which its samples begin."""
        parts = key.removeprefix(self.metrics_prefix(ref) + "/").split("/")
        match = _METRICS.match(parts[-1])
        return (parts[0], int(match[1])) if match and len(parts) == 2 and is_safe_component(parts[0]) else None

    def index_prefix(self, ref: SessionRef) -> str:
        return self._own("index", ref)

    def manifest_key(self, ref: SessionRef, generation: int) -> str:
        return f"{self.index_prefix(ref)}/manifest-{generation}.json"

    def claim_key(self, ref: SessionRef) -> str:
        """Says that somebody is folding the session."""
        return f"{self.index_prefix(ref)}/{CLAIM}"

    def parse_manifest_key(self, key: str) -> int | None:
        match = _MANIFEST.match(key.rpartition("/")[2])
        return int(match[1]) if match else None

    def generation_of(self, ref: SessionRef, key: str) -> int | None:
        """The generation to which an object of the index belongs: its manifest, or a file in a folder `<n>-<build>`."""
        manifest = self.parse_manifest_key(key)
        if manifest is not None:
            return manifest
        number = key.removeprefix(self.index_prefix(ref) + "/").partition("-")[0]
        return int(number) if number.isascii() and number.isdigit() else None

    def index_file_key(self, ref: SessionRef, build: str, table: str, part: int) -> str:
        return f"{self.index_prefix(ref)}/{build}/{table}.{part}.parquet"


def _old_category(category: str) -> str:
    """Jobs were folders by the base64 of their ids."""
    folder, _, job = category.partition("/")
    try:
        return f"{folder}/{base64.b64encode(bytes.fromhex(job)).decode()}" if job else folder
    except ValueError:
        return category


def is_event_file(name: str) -> bool:
    """Names of event objects, of every release."""
    return _EVENT_FILE.search(name) is not None


@functools.lru_cache(maxsize=4096)  # a listing asks the same few again and again
def _is_name(text: str) -> bool:
    try:
        return parse_name(text) == text
    except ValueError:
        return False


def is_node_folder(name: str) -> bool:
    """A folder right below a session's history that is a node's, as far as its name can tell."""
    return name != "fetched_endpoints" and is_safe_component(name)
