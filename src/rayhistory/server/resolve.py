"""From an address to a session: `/s/…` paths and KubeRay's cookies become one `Selection`, and that becomes a view.

/s/{namespace}/{cluster}/{session_…|latest|live}[@{UTC ms}]/…
/s/{namespace}/~rayjob/{name}/[{session_…|latest|live}/]…        likewise ~rayservice
"""

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec

from rayhistory.errors import SessionNotFound, UsageError
from rayhistory.index.builder import IndexBuilder
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.metrics import Samples
from rayhistory.layout.packread import Kept, Memory
from rayhistory.layout.session import is_session_name
from rayhistory.server.catalogue import LATEST, LIVE, Catalogue, Entry
from rayhistory.server.logfiles import AllLogs, PackLogs, plain_logs
from rayhistory.server.metricfiles import Found, MetricFiles, Wanted
from rayhistory.server.view import SessionView
from rayhistory.settings import parse_name
from rayhistory.storage import Store

_SESSIONS_WITH_LOGS = 256
_METRICS_KEPT = 32 << 20
OWNER_KINDS = ("rayjob", "rayservice")
COOKIES = ("cluster_name", "cluster_namespace", "session_name", "owner_kind", "owner_name")


class Selection(msgspec.Struct, frozen=True):
    """What an address names, before anything is looked up."""

    namespace: str
    name: str
    session: str
    owner_kind: str | None = None
    as_of_ms: int | None = None
    by_cookie: bool = False


def parse_session_path(path: str) -> tuple[Selection, str | None]:
    """The selection behind `/s/` and the path below it; None when not even the closing slash is there.

    The path has been decoded, once: a name that is encoded twice is another name, here as for what stands in front.
    """
    parts = path.split("/")
    if len(parts) < 2:
        raise UsageError("an address of a session is /s/{namespace}/{cluster}/{session}/")
    namespace, second, rest = _name(parts[0]), parts[1], parts[2:]
    kind = second[1:].lower() if second.startswith("~") else None
    if kind is not None:
        if kind not in OWNER_KINDS or not rest:
            raise UsageError(f"use ~rayjob or ~rayservice with a name, not {second!r}")
        name, rest = _name(rest[0]), rest[1:]
    else:
        name = _name(second)
    session, as_of = LATEST, None
    if rest and (kind is None or _is_session(rest[0])):
        session, as_of = _session(rest[0])
        rest = rest[1:]
    elif kind is None:
        raise UsageError("an address of a session is /s/{namespace}/{cluster}/{session}/")
    return Selection(namespace, name, session, kind, as_of), "/".join(rest) if rest else None


def selection_from_cookies(cookies: Mapping[str, str]) -> Selection | None:
    """What KubeRay's clients chose with `/enter_cluster`; None when they have not."""
    name, namespace, session = (cookies.get(key, "") for key in COOKIES[:3])
    if not (name and namespace and session):
        return None
    if session not in (LATEST, LIVE) and not is_session_name(session):
        raise UsageError(f"not a session name: {session!r}")
    return Selection(_name(namespace), _name(name), session, by_cookie=True)


def checked_selection(namespace: str, name: str, session: str, owner_kind: str | None) -> Selection:
    """What KubeRay's clients are about to choose."""
    return Selection(_name(namespace), _name(name), _session_name(session), owner_kind)


def _name(text: str) -> str:
    try:
        return parse_name(text)
    except ValueError:
        raise UsageError(f"not a name of a namespace, cluster or owner: {text!r}") from None


def _is_session(text: str) -> bool:
    name = text.partition("@")[0]
    return name in (LATEST, LIVE) or is_session_name(name)


def _session(text: str) -> tuple[str, int | None]:
    name, at, moment = text.partition("@")
    return _session_name(name), _moment(moment) if at else None


def _session_name(text: str) -> str:
    if text not in (LATEST, LIVE) and not is_session_name(text):
        raise SessionNotFound(f"not a session name: {text!r}")
    return text


def _moment(text: str) -> int:
    if re.fullmatch(r"\d{1,15}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(f"not a time: {text!r} (use milliseconds since 1970, or RFC 3339 with a zone)")
    return max(0, int(moment.timestamp() * 1000))


class Resolver:
    def __init__(self, catalogue: Catalogue, builder: IndexBuilder, store: Store, layout: Layout) -> None:
        self.catalogue = catalogue
        self.builder = builder
        self._store = store
        self._layout = layout
        self._logs: Kept[AllLogs] = Kept(_SESSIONS_WITH_LOGS)
        self._log_memory = Memory()
        self._metrics = MetricFiles(store, layout, Kept[Samples](_METRICS_KEPT))

    async def entry(self, selection: Selection) -> Entry:
        if selection.owner_kind:
            return await self.catalogue.find_owned(
                selection.namespace, selection.owner_kind, selection.name, selection.session
            )
        return await self.catalogue.find(selection.namespace, selection.name, selection.session)

    async def view(self, selection: Selection, patience: float | None = None, *, rebuild: bool = False) -> SessionView:
        """The session, folded if need be; raises NotIndexedYet when that takes longer than is waited."""
        entry = await self.entry(selection)
        closing = await self.catalogue.closing(entry)
        index = await self.builder.open(entry.ref, closing, patience, rebuild=rebuild)
        if selection.as_of_ms is not None:
            index = await self.builder.open_as_of(entry.ref, closing, selection.as_of_ms, patience)
        return SessionView(entry.ref, self.catalogue.state(entry), index, self._logs_of(entry.ref))

    async def metrics(self, selection: Selection, wanted: Wanted) -> Found:
        """Samples of a session's metrics: they need no fold."""
        return await self._metrics.read((await self.entry(selection)).ref, wanted)

    def _logs_of(self, ref: SessionRef) -> AllLogs:
        logs = self._logs.get(ref.identity)
        if logs is None:
            packs = PackLogs(self._store, self._layout, ref, self._log_memory)
            logs = AllLogs(*plain_logs(self._store, self._layout, ref), packs)
            self._logs.keep(ref.identity, logs, 1)
        return logs
