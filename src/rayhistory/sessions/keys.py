"""The names of all objects in the store, both ways: keys from sessions, and sessions from keys.

KubeRay's layout (since its v1.7) for everything that KubeRay has, and our own tree `ray-history/` for the rest:

    cluster-metadata/<kind>/<ns>_[<owner>_]<cluster>/<session>          empty: the session exists
    cluster-history/<kind>/<ns>/[<owner>/]<cluster>/<session>/
        <node>/node_events/<node>-<hour>-<ns>.jsonl[.gz]                 events without a job
        <node>/job_events/<job>/<node>-<hour>-<ns>.jsonl[.gz]            events of one job
        <node>/logs/<path>                                               complete log files
        fetched_endpoints/restful__…                                     last dashboard response of each path
    metadir/<cluster>_<ns>/<session>, <cluster>_<ns>/<session>/…         the same in KubeRay v1.6, written on request
    <ns>/<cluster>/<session>/events.log, metadata.json                   legacy layout, read on request
    ray-history/sessions/<ns>/<cluster>/<session>/                       start.json, alive, end.json or vanished.json
    ray-history/seals/<ns>/<cluster>/<session>/<node>.json               counts of one node's collector
    ray-history/snapshots/<ns>/<cluster>/<session>/<node>-<hour>-<ns>.jsonl[.gz]
                                                                         dashboard responses with their times
    ray-history/logs/<ns>/<cluster>/<session>/<node>/<folder>/<number>-….pack
                                                                         appended bytes of log files, see `packs`
    ray-history/logs/<ns>/<cluster>/<session>/<node>/compacted/          old packs in larger objects, and their records
    ray-history/metrics/<ns>/<cluster>/<session>/<node>/<ms>.msgpack.zst
                                                                         metric samples of one node, see `metrics`
    ray-history/metrics/<ns>/<cluster>/<session>/dashboards.json.zst     Grafana dashboards that the head wrote
    ray-history/index/<ns>/<cluster>/<session>/                          manifest-<n>.json, claim (the lease),
                                                                         <n>-<build>/<table>.<part>.parquet
    ray-history/index/<ns>/<cluster>/<session>/products/<product>/       the same for what is derived from the tables
    ray-history/runs/                                                    manifest-<n>.json of the run table, its lease
    ray-history/runs/parts/<name>.parquet                                summaries of many sessions
    ray-history/runs/inbox/<ns>/<cluster>/<session>/<n>-<id>.json        a summary that is in no part yet
    ray-history/runs/quarantine/…                                        damaged summaries
    ray-history/notifications/…                                          what is to be sent, and what was sent
    ray-history/pins/<ns>/<cluster>/<session>                            empty: excluded from retention
    ray-history/tombstones/<ns>/<cluster>/<session>                      the session is being removed, and hidden
"""

import base64
import functools
import re
from datetime import UTC, datetime
from pathlib import PurePosixPath

import msgspec

from rayhistory.names import parse_dns_name
from rayhistory.sessions.ref import SessionRef, is_safe_component, is_session_name

NODE_EVENTS = "node_events"
JOB_EVENTS = "job_events"
EVENT_FOLDERS = (NODE_EVENTS, JOB_EVENTS)
DASHBOARD_RESPONSES = "snapshots"
V1_6, V1_7 = "v1.6", "v1.7"
START_RECORD, ALIVE_RECORD, END_RECORD, VANISHED_RECORD = "start.json", "alive", "end.json", "vanished.json"
LEASE = "claim"
PRODUCTS_FOLDER = "products"
MANIFEST_GLOB = "manifest-*"

_ENDPOINT_PREFIX = "restful__"
_EVENT_FILE = re.compile(r"-\d{4}-\d{2}-\d{2}-\d{2}(-\d+)?(\.jsonl)?(\.gz)?\Z")
_METRICS_FILE = re.compile(r"([0-9]{13,15})\.msgpack\.zst\Z")
_MANIFEST_FILE = re.compile(r"manifest-([0-9]+)\.json\Z")
_INBOX_FILE = re.compile(r"([0-9]{1,9})-[0-9a-f]{1,16}\.json\Z")
_PRODUCT_MANIFEST_FILE = re.compile(r"manifest-([0-9]{1,9})\.product\.json\Z")
"""Not the name of a table manifest: releases without products delete those of old generations, wherever they are."""


class EventObject(msgspec.Struct, frozen=True):
    """An object that holds events or dashboard responses."""

    key: str
    size: int
    node: str


class Layout:
    """Keys below a common prefix. Reads the layouts of all releases; writes that of one KubeRay release."""

    def __init__(self, root: str = "", release: str = V1_7) -> None:
        self.root = "/".join(part for part in root.split("/") if part)
        self.writes_v1_6 = release == V1_6

    def _join(self, *parts: str) -> str:
        return "/".join(part for part in (self.root, *parts) if part)

    def moved(self, key: str, to: "Layout") -> str:
        """Translate a key to a store with another prefix."""
        return to._join(key.removeprefix(self.root + "/") if self.root else key)

    # KubeRay's layout since v1.7

    def metadata_prefix(self) -> str:
        return self._join("cluster-metadata")

    def metadata_key(self, ref: SessionRef) -> str:
        if self.writes_v1_6:
            return self.v1_6_metadata_key(ref)
        kind, owner = ref.owner_kind or "raycluster", ref.owner_name
        names = [ref.namespace, owner, ref.cluster] if owner else [ref.namespace, ref.cluster]
        return self._join("cluster-metadata", kind, "_".join(names), ref.session)

    def parse_metadata_key(self, key: str) -> SessionRef | None:
        """Return the session of a metadata key, or None for folder markers and unrelated objects."""
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
        """Return the key of an uploaded spool segment; the category is node_events, job_events/<job> or snapshots.

        KubeRay v1.6 accepts only names that end with the hour, so the time that makes them unique comes before it.
        """
        hour = datetime.fromtimestamp(created_ns // 10**9, UTC).strftime("%Y-%m-%d-%H")
        name = f"{node}-{hour}-{created_ns}.jsonl" + (".gz" if compressed else "")
        if category == DASHBOARD_RESPONSES:
            return f"{self.dashboard_responses_prefix(ref)}/{name}"
        if self.writes_v1_6:
            return f"{self.v1_6_history_prefix(ref)}/{_v1_6_category(category)}/{node}-{created_ns}-{hour}"
        return f"{self.history_prefix(ref)}/{node}/{category}/{name}"

    def parse_event_key(self, ref: SessionRef, key: str, size: int) -> EventObject | None:
        """Return an object with events below the session's history, or None for logs and all else."""
        parts = key.removeprefix(self.history_prefix(ref) + "/").split("/")
        if len(parts) < 3 or not _EVENT_FILE.search(parts[-1]):
            return None
        if (parts[1] == NODE_EVENTS and len(parts) == 3) or (parts[1] == JOB_EVENTS and len(parts) >= 4):
            return EventObject(key, size, parts[0])
        return None

    def logs_prefix(self, ref: SessionRef, node: str) -> str:
        return f"{self.history_prefix(ref)}/{node}/logs"

    def log_key(self, ref: SessionRef, node: str, path: str) -> str:
        prefix = self.v1_6_logs_prefix(ref, node) if self.writes_v1_6 else self.logs_prefix(ref, node)
        return f"{prefix}/{PurePosixPath(path)}"

    def endpoint_key(self, ref: SessionRef, uri: str) -> str:
        prefix = self.v1_6_endpoints_prefixes(ref)[0] if self.writes_v1_6 else self.endpoints_prefix(ref)
        return f"{prefix}/{_ENDPOINT_PREFIX}{uri.strip('/').replace('/', '__')}"

    def endpoints_prefix(self, ref: SessionRef) -> str:
        return f"{self.history_prefix(ref)}/fetched_endpoints"

    # KubeRay's layout before v1.7

    def v1_6_metadata_prefix(self) -> str:
        return self._join("metadir")

    def v1_6_metadata_key(self, ref: SessionRef) -> str:
        return self._join("metadir", f"{ref.cluster}_{ref.namespace}", ref.session)

    def parse_v1_6_metadata_key(self, key: str) -> SessionRef | None:
        """Return the session of `metadir/<cluster>_<namespace>/<session>`: the cluster comes first, without owners."""
        parts = key.removeprefix(self.v1_6_metadata_prefix() + "/").split("/")
        names = parts[0].split("_")
        if len(parts) != 2 or len(names) != 2 or not is_session_name(parts[1]) or not all(map(_is_name, names)):
            return None
        return SessionRef(names[1], names[0], parts[1])

    def v1_6_history_prefix(self, ref: SessionRef) -> str:
        """Parent of node_events/, job_events/<base64>/, logs/<node>/ and fetched_endpoints/."""
        return self._join(f"{ref.cluster}_{ref.namespace}", ref.session)

    def v1_6_endpoints_prefixes(self, ref: SessionRef) -> list[str]:
        prefix = self.v1_6_history_prefix(ref)
        return [f"{prefix}/fetched_endpoints", self._join(f"{ref.cluster}_{ref.namespace}", "meta", ref.session)]

    def v1_6_logs_prefix(self, ref: SessionRef, node: str = "") -> str:
        prefix = f"{self.v1_6_history_prefix(ref)}/logs"
        return f"{prefix}/{node}" if node else prefix

    # Legacy layout: all events of a session in one object

    def legacy_prefix(self, *names: str) -> str:
        """Folder of a namespace, a cluster or a session, by the number of names."""
        return self._join(*names)

    def is_legacy_folder_name(self, name: str) -> bool:
        """Return whether a folder can be a namespace or cluster; the folders of other layouts cannot."""
        return name not in {"cluster-metadata", "cluster-history", "metadir", "ray-history"} and _is_name(name)

    def legacy_events_key(self, ref: SessionRef) -> str:
        return f"{self.legacy_prefix(*ref.identity)}/events.log"

    def legacy_metadata_key(self, ref: SessionRef) -> str:
        return f"{self.legacy_prefix(*ref.identity)}/metadata.json"

    # Our own tree, ray-history/

    def sessions_prefix(self) -> str:
        return self._join("ray-history", "sessions")

    def scratch_prefix(self) -> str:
        """Prefix for the test objects of `rayhistory doctor`."""
        return self._join("ray-history", "doctor")

    def _own(self, tree: str, ref: SessionRef) -> str:
        return self._join("ray-history", tree, ref.path)

    def records_prefix(self, ref: SessionRef) -> str:
        return self._own("sessions", ref)

    def start_key(self, ref: SessionRef) -> str:
        return f"{self.records_prefix(ref)}/{START_RECORD}"

    def alive_key(self, ref: SessionRef) -> str:
        return f"{self.records_prefix(ref)}/{ALIVE_RECORD}"

    def end_key(self, ref: SessionRef) -> str:
        return f"{self.records_prefix(ref)}/{END_RECORD}"

    def vanished_key(self, ref: SessionRef) -> str:
        return f"{self.records_prefix(ref)}/{VANISHED_RECORD}"

    def node_seal_key(self, ref: SessionRef, node: str) -> str:
        return f"{self.node_seals_prefix(ref)}/{node}.json"

    def node_seals_prefix(self, ref: SessionRef) -> str:
        """Seals are not below the records, because the records of all sessions are listed often and nodes are many."""
        return self._own("seals", ref)

    def parse_record_key(self, key: str) -> tuple[SessionRef, str] | None:
        """Return session and record name (start.json, alive, …) of a key in the sessions tree."""
        parts = key.removeprefix(self.sessions_prefix() + "/").split("/")
        if len(parts) != 4 or not (_is_name(parts[0]) and _is_name(parts[1]) and is_session_name(parts[2])):
            return None
        return SessionRef(parts[0], parts[1], parts[2]), parts[3]

    def own_prefix(self) -> str:
        """Parent of one folder per tree; most trees contain `<namespace>/<cluster>/<session>`."""
        return self._join("ray-history")

    def is_tree_of_sessions(self, tree: str) -> bool:
        """Return whether a tree holds data of sessions. Trees of later releases do."""
        return tree not in {"pins", "tombstones", "doctor", "runs", "notifications"}

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

    def parse_pin_or_tombstone_key(self, key: str) -> SessionRef | None:
        """Return the session of a pin or tombstone key."""
        parts = key.removeprefix(self.own_prefix() + "/").split("/")
        if len(parts) != 4 or not (_is_name(parts[1]) and _is_name(parts[2]) and is_session_name(parts[3])):
            return None
        return SessionRef(parts[1], parts[2], parts[3])

    def dashboard_responses_prefix(self, ref: SessionRef) -> str:
        return self._own("snapshots", ref)

    def parse_dashboard_responses_key(self, key: str, size: int) -> EventObject | None:
        name = key.rpartition("/")[2]
        match = _EVENT_FILE.search(name)
        return EventObject(key, size, name[: match.start()]) if match else None

    def packs_prefix(self, ref: SessionRef) -> str:
        """Parent of one folder per node."""
        return self._own("logs", ref)

    def node_packs_prefix(self, ref: SessionRef, node: str) -> str:
        return f"{self.packs_prefix(ref)}/{node}"

    def metrics_prefix(self, ref: SessionRef) -> str:
        """Parent of one folder per node."""
        return self._own("metrics", ref)

    def metrics_key(self, ref: SessionRef, node: str, first_ms: int) -> str:
        return f"{self.metrics_prefix(ref)}/{node}/{first_ms:013d}.msgpack.zst"

    def grafana_dashboards_key(self, ref: SessionRef) -> str:
        return f"{self.metrics_prefix(ref)}/dashboards.json.zst"

    def parse_metrics_key(self, ref: SessionRef, key: str) -> tuple[str, int] | None:
        """Return the node and the time of its first sample in ms."""
        parts = key.removeprefix(self.metrics_prefix(ref) + "/").split("/")
        match = _METRICS_FILE.match(parts[-1])
        return (parts[0], int(match[1])) if match and len(parts) == 2 and is_safe_component(parts[0]) else None

    def index_prefix(self, ref: SessionRef) -> str:
        return self._own("index", ref)

    def manifest_key(self, ref: SessionRef, generation: int) -> str:
        return f"{self.index_prefix(ref)}/manifest-{generation}.json"

    def lease_key(self, ref: SessionRef) -> str:
        """Return the key of the lease of a session."""
        return f"{self.index_prefix(ref)}/{LEASE}"

    def parse_manifest_key(self, key: str) -> int | None:
        match = _MANIFEST_FILE.match(key.rpartition("/")[2])
        return int(match[1]) if match else None

    def generation_of(self, ref: SessionRef, key: str) -> int | None:
        """Return the generation of an index object: a manifest, or a file in a folder `<n>-<build>`."""
        manifest = self.parse_manifest_key(key)
        if manifest is not None:
            return manifest
        number = key.removeprefix(self.index_prefix(ref) + "/").partition("-")[0]
        return int(number) if number.isascii() and number.isdigit() else None

    def index_file_key(self, ref: SessionRef, build: str, table: str, part: int) -> str:
        return f"{self.index_prefix(ref)}/{build}/{table}.{part}.parquet"

    def covered_key(self, ref: SessionRef, build: str) -> str:
        """Return the key of the list of objects that a generation covers."""
        return f"{self.index_prefix(ref)}/{build}/covered.json"

    def products_prefix(self, ref: SessionRef) -> str:
        """Parent of one folder per product."""
        return f"{self.index_prefix(ref)}/{PRODUCTS_FOLDER}"

    def product_prefix(self, ref: SessionRef, product: str) -> str:
        return f"{self.products_prefix(ref)}/{product}"

    def product_manifest_key(self, ref: SessionRef, product: str, generation: int) -> str:
        return f"{self.product_prefix(ref, product)}/manifest-{generation}.product.json"

    def parse_product_manifest_key(self, key: str) -> int | None:
        match = _PRODUCT_MANIFEST_FILE.match(key.rpartition("/")[2])
        return int(match[1]) if match else None

    def product_file_key(self, ref: SessionRef, product: str, build: str, file: str) -> str:
        return f"{self.product_prefix(ref, product)}/{build}/{file}"

    def product_lease_key(self, ref: SessionRef, product: str) -> str:
        return f"{self.product_prefix(ref, product)}/{LEASE}"

    # Notifications about runs

    def notifications_prefix(self) -> str:
        return self._join("ray-history", "notifications")

    def outbox_prefix(self) -> str:
        return f"{self.notifications_prefix()}/outbox"

    def outbox_key(self, name: str) -> str:
        return f"{self.outbox_prefix()}/{name}.json"

    def sent_prefix(self) -> str:
        return f"{self.notifications_prefix()}/sent"

    def sent_key(self, name: str) -> str:
        return f"{self.sent_prefix()}/{name}"

    def notifications_started_key(self) -> str:
        return f"{self.notifications_prefix()}/started.json"

    def notifications_lease_key(self) -> str:
        return f"{self.notifications_prefix()}/{LEASE}"

    # The run table: summaries of all sessions

    def runs_prefix(self) -> str:
        return self._join("ray-history", "runs")

    def runs_manifest_key(self, generation: int) -> str:
        return f"{self.runs_prefix()}/manifest-{generation}.json"

    def runs_lease_key(self) -> str:
        return f"{self.runs_prefix()}/{LEASE}"

    def run_part_key(self, name: str) -> str:
        return f"{self.runs_prefix()}/parts/{name}.parquet"

    def parse_run_part_key(self, key: str) -> str | None:
        """Return the name of a part."""
        prefix = f"{self.runs_prefix()}/parts/"
        name = key.removeprefix(prefix).removesuffix(".parquet")
        return name if key == self.run_part_key(name) and is_safe_component(name) else None

    def run_inbox_key(self, ref: SessionRef, generation: int, token: str) -> str:
        """Return the key of a session's summary, from this generation of its tables. The token is unique."""
        return f"{self.run_inbox_prefix(ref)}/{generation}-{token}.json"

    def run_inbox_prefix(self, ref: SessionRef) -> str:
        return f"{self.runs_prefix()}/inbox/{ref.path}"

    def run_inbox_prefixes(self, ref: SessionRef) -> list[str]:
        """Return the prefixes of a session's summaries outside of its index: announced ones, and damaged ones."""
        prefix = self.run_inbox_prefix(ref)
        return [prefix, self.run_quarantine_key(prefix)]

    def parse_run_inbox_key(self, key: str) -> tuple[SessionRef, int] | None:
        """Return the session of a summary and the generation of its tables."""
        prefix = f"{self.runs_prefix()}/inbox/"
        parts = key.removeprefix(prefix).split("/") if key.startswith(prefix) else []
        match = _INBOX_FILE.match(parts[-1]) if len(parts) == 4 else None
        if not match or not (_is_name(parts[0]) and _is_name(parts[1]) and is_session_name(parts[2])):
            return None
        return SessionRef(parts[0], parts[1], parts[2]), int(match[1])

    def run_quarantine_key(self, key: str) -> str:
        """Return where an object of the run table is moved that cannot be read."""
        return f"{self.runs_prefix()}/quarantine/{key.removeprefix(self.runs_prefix() + '/')}"

    def is_index_lease(self, ref: SessionRef, key: str) -> bool:
        """Return whether a key is that of a lease on a session's tables or products."""
        return key.startswith(self.index_prefix(ref) + "/") and key.endswith(f"/{LEASE}")

    def is_index_manifest(self, key: str) -> bool:
        """Return whether a key is that of a manifest, of tables or of a product."""
        return self.parse_manifest_key(key) is not None or self.parse_product_manifest_key(key) is not None


def _v1_6_category(category: str) -> str:
    """KubeRay v1.6 names job folders by the base64 of their ids."""
    folder, _, job = category.partition("/")
    try:
        return f"{folder}/{base64.b64encode(bytes.fromhex(job)).decode()}" if job else folder
    except ValueError:
        return category


def endpoint_uri(key: str) -> str:
    """Return the URI of a dashboard response from its key, with sorted query parameters."""
    path, mark, query = key.rpartition("/")[2].removeprefix(_ENDPOINT_PREFIX).partition("?")
    return "/" + path.replace("__", "/") + mark + "&".join(sorted(query.split("&")))


def is_event_file(name: str) -> bool:
    """Return whether a name is that of an object with events, in any release."""
    return _EVENT_FILE.search(name) is not None


@functools.lru_cache(maxsize=4096)  # listings repeat a few names many times
def _is_name(text: str) -> bool:
    try:
        return parse_dns_name(text) == text
    except ValueError:
        return False


def is_node_folder(name: str) -> bool:
    """Return whether a folder of a session's history can be that of a node."""
    return name != "fetched_endpoints" and is_safe_component(name)
