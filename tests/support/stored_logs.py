"""The log files of a session in a store."""

import asyncio
from pathlib import Path

from rayhistory.logs.source import CombinedLogs, PackLogs, object_logs
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage.local import LocalStore


def stored_logs(directory: Path, cluster: str, session: str) -> dict[str, bytes]:
    """Read all log files of all nodes, packed and plain."""

    async def read() -> dict[str, bytes]:
        store, layout, ref = LocalStore(directory), Layout(), SessionRef("default", cluster, session)
        logs = CombinedLogs(*object_logs(store, layout, ref), PackLogs(store, layout, ref))
        return {
            file.path: await logs.read(node, file.path, 0, file.size)
            for node in await logs.nodes()
            for file in await logs.files(node)
        }

    return asyncio.run(read())
