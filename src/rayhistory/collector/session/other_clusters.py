"""Find out whether another cluster has already recorded an ended session that is still on this node.

Ray's temporary directory keeps the directories of ended sessions. A collector that is started with another cluster name
must not upload them again as sessions of its own cluster. Two places tell who recorded a session:

1. The spools beside this collector's spool. Their names contain cluster and namespace.
2. The records of the same namespace in the store, if the credentials permit listing them.
"""

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rayhistory.collector.held_directory import HeldDirectory
from rayhistory.collector.session.ray_files import read_start, scan_folder
from rayhistory.collector.spool.ledger import LEDGER_FILE, read_sessions
from rayhistory.errors import StoreDenied
from rayhistory.sessions import Layout
from rayhistory.sessions.keys import END_RECORD
from rayhistory.storage import Store

_ROOT_USER = 0


class OtherRecording(NamedTuple):
    cluster: str
    """Namespace and cluster that recorded the session."""
    is_complete: bool


def find_in_spools(spool: Path, session: str, mark: str, version: str) -> OtherRecording | None:
    """Return the other cluster whose spool has the session; None if there is none, or if `spool` itself has it.

    A spool has the session if its ledger lists the session, or if the file `mark` is in the spool. All logs of the
    session are uploaded if the content of `mark` is `version`.
    """
    found = None
    for directory in _spools(spool.parent):
        uploaded = read_start(directory.path, mark).decode(errors="replace")
        if uploaded or session in read_sessions(read_start(directory.path, LEDGER_FILE)):
            if directory.name == spool.name:
                return None
            cluster, _, namespace = directory.name.rpartition("_")
            found = OtherRecording(f"{namespace}/{cluster}", is_complete=uploaded == version)
    return found


def _spools(parent: Path) -> Iterator[HeldDirectory]:
    """Open the directories that belong to this user or to root. Their files are only read."""
    for name, status in scan_folder(parent):
        if stat.S_ISDIR(status.st_mode) and status.st_uid in {os.geteuid(), _ROOT_USER} and "_" in name:
            with suppress(OSError):
                yield HeldDirectory.open(parent, name)


async def find_in_store(
    store: Store, layout: Layout, namespace: str, cluster: str, sessions: Collection[str]
) -> dict[str, OtherRecording]:
    """Return the sessions of which another cluster of the namespace has records, and `cluster` has not.

    All of them are found with one listing, because a job can create directories of any number of sessions.
    """
    records: dict[str, dict[str, set[str]]] = {}
    with suppress(StoreDenied):
        async for info in store.list_all(f"{layout.sessions_prefix()}/{namespace}"):
            found = layout.parse_record_key(info.key)
            if found and found[0].session in sessions:
                records.setdefault(found[0].session, {}).setdefault(found[0].cluster, set()).add(found[1])
    return {
        session: OtherRecording(f"{namespace}/{other}", is_complete=END_RECORD in names)
        for session, by_cluster in records.items()
        for other, names in [min(by_cluster.items())]
        if cluster not in by_cluster
    }
