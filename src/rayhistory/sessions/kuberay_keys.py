"""KubeRay's keys: build them from sessions, and parse sessions from them.

`<namespace>`, `<cluster>` and `<owner>` are DNS names, `<hour>` is YYYY-MM-DD-HH, `<nanoseconds>` are since 1970:

    cluster-metadata/<kind>/<namespace>_[<owner>_]<cluster>/<session>    empty: the session exists
    cluster-history/<kind>/<namespace>/[<owner>/]<cluster>/<session>/
        <node>/node_events/<node>-<hour>-<nanoseconds>.jsonl[.gz]        events without a job
        <node>/job_events/<job>/<node>-<hour>-<nanoseconds>.jsonl[.gz]   events of one job
        <node>/logs/<path>                                               complete log files
        fetched_endpoints/restful__…                                     last dashboard response of each path
    metadir/<cluster>_<namespace>/<session>,                             the same in KubeRay v1.6, written on request
        <cluster>_<namespace>/<session>/…
    <namespace>/<cluster>/<session>/events.log, metadata.json            legacy layout, read on request
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
V1_6, V1_7 = "v1.6", "v1.7"

EVENT_FILE = re.compile(r"-\d{4}-\d{2}-\d{2}-\d{2}(-\d+)?(\.jsonl)?(\.gz)?\Z")
"""The end of the name of an object with events, in any release."""
_ENDPOINT_PREFIX = "restful__"


class EventObject(msgspec.Struct, frozen=True):
    """An object that holds events or dashboard responses."""

    key: str
    size: int
    node: str


class KubeRayLayout:
    """Keys below a common prefix: reads the layouts of all KubeRay releases, and writes the layout of one release."""

    def __init__(self, root: str = "", release: str = V1_7) -> None:
        self.root = "/".join(part for part in root.split("/") if part)
        self.writes_v1_6 = release == V1_6

    def join(self, *parts: str) -> str:
        return "/".join(part for part in (self.root, *parts) if part)

    def moved(self, key: str, to: "KubeRayLayout") -> str:
        """Convert a key of this layout to the corresponding key of a layout with another prefix."""
        return to.join(key.removeprefix(self.root + "/") if self.root else key)

    # KubeRay's layout since v1.7

    def metadata_prefix(self) -> str:
        return self.join("cluster-metadata")

    def metadata_key(self, ref: SessionRef) -> str:
        if self.writes_v1_6:
            return self.v1_6_metadata_key(ref)
        kind, owner = ref.owner_kind or "raycluster", ref.owner_name
        names = [ref.namespace, owner, ref.cluster] if owner else [ref.namespace, ref.cluster]
        return self.join("cluster-metadata", kind, "_".join(names), ref.session)

    def parse_metadata_key(self, key: str) -> SessionRef | None:
        """Return the session of a metadata key, or None for folder markers and unrelated objects."""
        prefix = self.metadata_prefix() + "/"
        parts = key.removeprefix(prefix).split("/") if key.startswith(prefix) else []
        if len(parts) != 3 or not is_session_name(parts[2]):
            return None
        kind, names = parts[0].lower(), parts[1].split("_")
        if not all(is_dns_name(name) for name in names):
            return None
        if kind == "raycluster" and len(names) == 2:
            return SessionRef(names[0], names[1], parts[2])
        if kind in {"rayjob", "rayservice"} and len(names) == 3:
            return SessionRef(names[0], names[2], parts[2], kind, names[1])
        return None

    def history_prefix(self, ref: SessionRef) -> str:
        owner = [ref.owner_name] if ref.owner_name else []
        return self.join(
            "cluster-history", ref.owner_kind or "raycluster", ref.namespace, *owner, ref.cluster, ref.session
        )

    def events_key(self, ref: SessionRef, node: str, category: str, created_ns: int, *, compressed: bool) -> str:
        """Return the key of the object with the events of one category of a spool segment.

        The category is node_events or job_events/<job>. KubeRay v1.6 accepts only names that end with the hour. So the
        nanoseconds, which make the name unique, come before it.
        """
        if self.writes_v1_6:
            return f"{self.v1_6_history_prefix(ref)}/{_v1_6_category(category)}/{node}-{created_ns}-{_hour(created_ns)}"
        name = event_file_name(node, created_ns, compressed=compressed)
        return f"{self.history_prefix(ref)}/{node}/{category}/{name}"

    def parse_event_key(self, ref: SessionRef, key: str, size: int) -> EventObject | None:
        """Return an object with events below the session's history; None for other objects."""
        parts = key.removeprefix(self.history_prefix(ref) + "/").split("/")
        if len(parts) < 3 or not EVENT_FILE.search(parts[-1]):
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
        return self.join("metadir")

    def v1_6_metadata_key(self, ref: SessionRef) -> str:
        return self.join("metadir", f"{ref.cluster}_{ref.namespace}", ref.session)

    def parse_v1_6_metadata_key(self, key: str) -> SessionRef | None:
        """Return the session of `metadir/<cluster>_<namespace>/<session>`.

        The cluster comes first, and there is no owner.
        """
        parts = key.removeprefix(self.v1_6_metadata_prefix() + "/").split("/")
        names = parts[0].split("_")
        if len(parts) != 2 or len(names) != 2 or not is_session_name(parts[1]) or not all(map(is_dns_name, names)):
            return None
        return SessionRef(names[1], names[0], parts[1])

    def v1_6_history_prefix(self, ref: SessionRef) -> str:
        """Return the prefix of node_events/, job_events/<base64>/, logs/<node>/ and fetched_endpoints/."""
        return self.join(f"{ref.cluster}_{ref.namespace}", ref.session)

    def v1_6_endpoints_prefixes(self, ref: SessionRef) -> list[str]:
        prefix = self.v1_6_history_prefix(ref)
        return [f"{prefix}/fetched_endpoints", self.join(f"{ref.cluster}_{ref.namespace}", "meta", ref.session)]

    def v1_6_logs_prefix(self, ref: SessionRef, node: str = "") -> str:
        prefix = f"{self.v1_6_history_prefix(ref)}/logs"
        return f"{prefix}/{node}" if node else prefix

    # Legacy layout: all events of a session in one object

    def legacy_prefix(self, *names: str) -> str:
        """Return the folder of a namespace, cluster or session, depending on the number of names."""
        return self.join(*names)

    def is_legacy_folder_name(self, name: str) -> bool:
        """Return whether a folder can be a namespace or cluster of the legacy layout."""
        return name not in {"cluster-metadata", "cluster-history", "metadir", "ray-history"} and is_dns_name(name)

    def legacy_events_key(self, ref: SessionRef) -> str:
        return f"{self.legacy_prefix(*ref.identity)}/events.log"

    def legacy_metadata_key(self, ref: SessionRef) -> str:
        return f"{self.legacy_prefix(*ref.identity)}/metadata.json"


def event_file_name(node: str, created_ns: int, *, compressed: bool) -> str:
    return f"{node}-{_hour(created_ns)}-{created_ns}.jsonl" + (".gz" if compressed else "")


def _hour(created_ns: int) -> str:
    return datetime.fromtimestamp(created_ns // 10**9, UTC).strftime("%Y-%m-%d-%H")


def _v1_6_category(category: str) -> str:
    """Return the category for KubeRay v1.6, which names job folders by the base64 of their ids."""
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
    """Return whether an object with this name contains events, in the layout of any release."""
    return EVENT_FILE.search(name) is not None


@functools.lru_cache(maxsize=4096)  # listings repeat a few names many times
def is_dns_name(text: str) -> bool:
    try:
        return parse_dns_name(text) == text
    except ValueError:
        return False


def is_node_folder(name: str) -> bool:
    """Return whether a folder of a session's history can belong to a node."""
    return name != "fetched_endpoints" and is_safe_component(name)
