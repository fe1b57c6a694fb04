"""Addresses of the form `rayhistory://namespace/cluster[/session]` for Ray's own clients.

Ray's clients import the module named in the address, and ask it for the URL. `RAYHISTORY_SERVER` is the URL of the
history server.
"""

import os
from typing import Any

SERVER_VARIABLE = "RAYHISTORY_SERVER"
LOCAL_SERVER = "http://127.0.0.1:8080"


def session_url(name: str, server: str | None = None) -> str:
    """Return the URL of a session, or of the newest session of a cluster or owner."""
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
    """Return Ray's ClusterInfo for an address. Ray's clients call this function by its name."""
    from ray.dashboard.modules.dashboard_sdk import ClusterInfo  # noqa: PLC0415

    return ClusterInfo(session_url(address), cookies, metadata, headers)
