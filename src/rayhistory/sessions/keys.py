"""Object keys: build them from sessions, and parse sessions from them.

KubeRay's keys are in `kuberay_keys`. Everything that KubeRay does not have is in our own tree `ray-history/`, where
`<session>` stands for `<namespace>/<cluster>/<session name>`:

    sessions/<session>/                                 start.json, alive, end.json or vanished.json,
                                                        first-stored-<milliseconds> of imports and copies
    seals/<session>/<node>.json                         counts of one node's collector
    snapshots/<session>/<node>-<hour>-<nanoseconds>.jsonl[.gz]
                                                        dashboard responses with their times
    logs/<session>/<node>/<folder>/<number>-….pack      appended bytes of log files, see `packs`
    logs/<session>/<node>/compacted/                    old packs in larger objects, and their records
    metrics/<session>/<node>/<milliseconds>.msgpack.zst metric samples of one node, see `metrics`
    metrics/<session>/dashboards.json.zst               Grafana dashboards that the head wrote
    index/<session>/                                    manifest-<generation>.json, claim (the lease),
                                                        <generation>-<build>/<table>.<part>.parquet
    index/<session>/products/<product>/                 the same for each product
    runs/                                               manifest-<generation>.json of the run table, its lease
    runs/parts/<name>.parquet                           summaries of many sessions
    runs/inbox/<namespace>/<cluster>_<session name>_<generation>-<token>.json
                                                        a summary that is in no part yet
    runs/quarantine/…                                   damaged summaries
    notifications/…                                     notifications to send, and marks of sent ones
    pins/<session>                                      empty: excluded from retention
    tombstones/<session>                                the session is being removed, and hidden
"""

import re

from rayhistory.sessions.kuberay_keys import EVENT_FILE, EventObject, KubeRayLayout, event_file_name, is_dns_name
from rayhistory.sessions.ref import SessionRef, is_safe_component, is_session_name

DASHBOARD_RESPONSES = "snapshots"
START_RECORD, ALIVE_RECORD, END_RECORD, VANISHED_RECORD = "start.json", "alive", "end.json", "vanished.json"
LEASE = "claim"
PRODUCTS_FOLDER = "products"
MANIFEST_GLOB = "manifest-*"

_FIRST_STORED = re.compile(r"first-stored-([0-9]{13})\Z")
_METRICS_FILE = re.compile(r"([0-9]{13,15})\.msgpack\.zst\Z")
_MANIFEST_FILE = re.compile(r"manifest-([0-9]+)\.json\Z")
_INBOX_FILE = re.compile(r"([0-9]{1,9})-[0-9a-f]{1,16}\.json\Z")
_MAX_FILE_NAME = 255
_PRODUCT_MANIFEST_FILE = re.compile(r"manifest-([0-9]{1,9})\.product\.json\Z")
"""File name of product manifests. It differs from that of table manifests, which releases without products clean up."""


class Layout(KubeRayLayout):
    """All keys of a store: KubeRay's and ours."""

    def sessions_prefix(self) -> str:
        return self.join("ray-history", "sessions")

    def scratch_prefix(self) -> str:
        """Prefix for the test objects of `rayhistory doctor`."""
        return self.join("ray-history", "doctor")

    def _own(self, tree: str, ref: SessionRef) -> str:
        return self.join("ray-history", tree, ref.path)

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

    def first_stored_key(self, ref: SessionRef, stored_ms: int) -> str:
        """Return the key whose name has the time by which an import or a copy is ordered among other sessions.

        The start record has the same time, but sessions are ordered by listings alone.
        """
        return f"{self.records_prefix(ref)}/first-stored-{stored_ms:013d}"

    def parse_first_stored(self, record: str) -> int | None:
        """Return the time in the name of a `first-stored` record, in ms; None for other names."""
        match = _FIRST_STORED.match(record)
        return int(match[1]) if match else None

    def node_seal_key(self, ref: SessionRef, node: str) -> str:
        return f"{self.node_seals_prefix(ref)}/{node}.json"

    def node_seals_prefix(self, ref: SessionRef) -> str:
        """Return the prefix of seals.

        They are separate from records, because records of all sessions are listed often.
        """
        return self._own("seals", ref)

    def parse_record_key(self, key: str) -> tuple[SessionRef, str] | None:
        """Return session and record name (start.json, alive, …) of a key in the sessions tree."""
        parts = key.removeprefix(self.sessions_prefix() + "/").split("/")
        if len(parts) != 4 or not (is_dns_name(parts[0]) and is_dns_name(parts[1]) and is_session_name(parts[2])):
            return None
        return SessionRef(parts[0], parts[1], parts[2]), parts[3]

    def own_prefix(self) -> str:
        """Return the prefix of all keys that KubeRay does not have, with one folder (a tree) per kind of data."""
        return self.join("ray-history")

    def is_tree_of_sessions(self, tree: str) -> bool:
        """Return whether a tree contains data of sessions. Unknown trees of later releases count as such."""
        return tree not in {"pins", "tombstones", "doctor", "runs", "notifications"}

    def own_tree_prefix(self, tree: str, ref: SessionRef) -> str:
        return self._own(tree, ref)

    def pins_prefix(self) -> str:
        return self.join("ray-history", "pins")

    def pin_key(self, ref: SessionRef) -> str:
        return self._own("pins", ref)

    def tombstones_prefix(self) -> str:
        return self.join("ray-history", "tombstones")

    def tombstone_key(self, ref: SessionRef) -> str:
        return self._own("tombstones", ref)

    def parse_pin_or_tombstone_key(self, key: str) -> SessionRef | None:
        """Return the session of a pin or tombstone key."""
        parts = key.removeprefix(self.own_prefix() + "/").split("/")
        if len(parts) != 4 or not (is_dns_name(parts[1]) and is_dns_name(parts[2]) and is_session_name(parts[3])):
            return None
        return SessionRef(parts[1], parts[2], parts[3])

    def dashboard_responses_prefix(self, ref: SessionRef) -> str:
        return self._own("snapshots", ref)

    def events_key(self, ref: SessionRef, node: str, category: str, created_ns: int, *, compressed: bool) -> str:
        """Return the key of one object of a spool segment. Dashboard responses are in our tree, events in KubeRay's."""
        if category == DASHBOARD_RESPONSES:
            name = event_file_name(node, created_ns, compressed=compressed)
            return f"{self.dashboard_responses_prefix(ref)}/{name}"
        return super().events_key(ref, node, category, created_ns, compressed=compressed)

    def parse_dashboard_responses_key(self, key: str, size: int) -> EventObject | None:
        name = key.rpartition("/")[2]
        match = EVENT_FILE.search(name)
        return EventObject(key, size, name[: match.start()]) if match else None

    def packs_prefix(self, ref: SessionRef) -> str:
        """Return the prefix of a session's packs. Each node has a folder below it."""
        return self._own("logs", ref)

    def node_packs_prefix(self, ref: SessionRef, node: str) -> str:
        return f"{self.packs_prefix(ref)}/{node}"

    def metrics_prefix(self, ref: SessionRef) -> str:
        """Return the prefix of a session's metrics. Each node has a folder below it."""
        return self._own("metrics", ref)

    def metrics_key(self, ref: SessionRef, node: str, first_ms: int) -> str:
        return f"{self.metrics_prefix(ref)}/{node}/{first_ms:013d}.msgpack.zst"

    def grafana_dashboards_key(self, ref: SessionRef) -> str:
        return f"{self.metrics_prefix(ref)}/dashboards.json.zst"

    def parse_metrics_key(self, ref: SessionRef, key: str) -> tuple[str, int] | None:
        """Return the node of a metrics object, and the time of the object's first sample in ms; None for other keys."""
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
        """Return the prefix of a session's products. Each product has a folder below it."""
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
        return self.join("ray-history", "notifications")

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
        return self.join("ray-history", "runs")

    def runs_manifest_key(self, generation: int) -> str:
        return f"{self.runs_prefix()}/manifest-{generation}.json"

    def runs_lease_key(self) -> str:
        return f"{self.runs_prefix()}/{LEASE}"

    def run_part_key(self, name: str) -> str:
        return f"{self.runs_prefix()}/parts/{name}.parquet"

    def parse_run_part_key(self, key: str) -> str | None:
        """Return the name of the part with this key; None if it is not the key of a part."""
        prefix = f"{self.runs_prefix()}/parts/"
        name = key.removeprefix(prefix).removesuffix(".parquet")
        return name if key == self.run_part_key(name) and is_safe_component(name) else None

    def run_inbox_prefix(self) -> str:
        return f"{self.runs_prefix()}/inbox"

    def run_inbox_key(self, ref: SessionRef, generation: int, token: str) -> str:
        """Return the key of a session's summary for this generation of its tables. The token makes it unique.

        The sessions of a namespace share a folder, because directories and some S3 servers keep and list empty folders.
        Only a session whose file name would be too long has its own folder. In earlier releases, every session had one.
        """
        name, folder = f"{generation}-{token}.json", f"{self.run_inbox_prefix()}/{ref.namespace}"
        flat = f"{ref.cluster}_{ref.session}_{name}"
        return f"{folder}/{flat if len(flat) <= _MAX_FILE_NAME else f'{ref.cluster}/{ref.session}/{name}'}"

    def run_inbox_prefixes(self, ref: SessionRef) -> list[str]:
        """Return the prefixes of a namespace's summaries in the inbox and in quarantine, outside of its indexes."""
        prefix = f"{self.run_inbox_prefix()}/{ref.namespace}"
        return [prefix, self.run_quarantine_key(prefix)]

    def is_run_summary(self, ref: SessionRef, key: str) -> bool:
        """Return whether a key below a prefix of `run_inbox_prefixes` belongs to a summary of the session."""
        announced = key.replace(self.run_quarantine_key(""), f"{self.runs_prefix()}/", 1)
        parsed = self.parse_run_inbox_key(announced)
        return parsed is not None and parsed[0].identity == ref.identity

    def parse_run_inbox_key(self, key: str) -> tuple[SessionRef, int] | None:
        """Return the session of a summary and the generation of its tables."""
        prefix = f"{self.run_inbox_prefix()}/"
        parts = key.removeprefix(prefix).split("/") if key.startswith(prefix) else []
        if len(parts) == 2:
            cluster, _, rest = parts.pop().partition("_")
            session, _, name = rest.rpartition("_")
            parts += [cluster, session, name]
        match = _INBOX_FILE.match(parts[-1]) if len(parts) == 4 else None
        if not match or not (is_dns_name(parts[0]) and is_dns_name(parts[1]) and is_session_name(parts[2])):
            return None
        return SessionRef(parts[0], parts[1], parts[2]), int(match[1])

    def run_quarantine_key(self, key: str) -> str:
        """Return the quarantine key for a damaged object of the run table."""
        return f"{self.runs_prefix()}/quarantine/{key.removeprefix(self.runs_prefix() + '/')}"

    def is_index_lease(self, ref: SessionRef, key: str) -> bool:
        """Return whether a key belongs to a lease on a session's tables or products."""
        return key.startswith(self.index_prefix(ref) + "/") and key.endswith(f"/{LEASE}")

    def is_index_manifest(self, key: str) -> bool:
        """Return whether a key belongs to a manifest of tables or of a product."""
        return self.parse_manifest_key(key) is not None or self.parse_product_manifest_key(key) is not None
