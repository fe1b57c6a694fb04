"""`rayhistory://namespace/cluster[/session]`: a session's address for Ray's own clients, wherever the server is.

Ray's clients import the module that an address begins with, and ask it where to go. `RAYHISTORY_SERVER` says where the
server is.
"""

import os
from typing import Any

SERVER_VARIABLE = "RAYHISTORY_SERVER"
LOCAL_SERVER = "http://127.0.0.1:8080"


def session_url(name: str, server: str | None = None) -> str:
    """Where a session answers; of a cluster or an owner, the newest."""
    server = (server or os.environ.get(SERVER_VARIABLE) or LOCAL_SERVER).rstrip("/")
    path = name.strip("/")
    if path.count("/") == 1:
        path += "/latest"
    return f"{server}/s/{path}"


def get_job_submission_client_cluster_info(
    address: str,
    *,
    cookies: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    headers: dict[str, Any] | None = None,
    **_unused: Any,
) -> Any:
    """Called by Ray's clients, under this name."""
    from ray.dashboard.modules.dashboard_sdk import ClusterInfo  # noqa: PLC0415

    return ClusterInfo(session_url(address), cookies, metadata, headers)
