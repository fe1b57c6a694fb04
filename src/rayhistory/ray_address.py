"""Addresses of the form `rayhistory://namespace/cluster[/session]` for Ray's own clients.

Ray's clients import the module named in the address, and ask it for the URL. `RAYHISTORY_SERVER` is the URL of the
history server. Without it, a server on this machine is used, as `rayhistory open` finds it.
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

SERVER_VARIABLE = "RAYHISTORY_SERVER"
LOCAL_SERVER = "http://127.0.0.1:8080"


def session_url(name: str, headers: Mapping[str, str] | None = None) -> str:
    """Return the URL of a session, or of the newest session of a cluster or owner."""
    path = name.strip("/")
    if path.count("/") == 1:
        path += "/latest"
    server = os.environ.get(SERVER_VARIABLE) or _local_server(f"/s/{quote(path, safe='/~@:+')}/", headers or {})
    return f"{server.rstrip('/')}/s/{path}"


def _local_server(session_path: str, headers: Mapping[str, str]) -> str:
    """Return the server on the default port, or one that this user started on another port and that has the session."""
    # Imported late: the collector loads this module, too.
    from rayhistory.running_servers import registered_servers  # noqa: PLC0415
    from rayhistory.settings import default_cache_dir  # noqa: PLC0415

    others = registered_servers(os.environ.get("RAYHISTORY_CACHE_DIR") or default_cache_dir())
    if not others:
        return LOCAL_SERVER
    from rayhistory.server_probe import has_session  # noqa: PLC0415

    token = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **headers}
    for server in dict.fromkeys([LOCAL_SERVER, *others]):
        if has_session(server, session_path, headers):
            return server
    return others[0]


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

    return ClusterInfo(session_url(address, headers), cookies, metadata, headers)
