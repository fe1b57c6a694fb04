"""Ray History Server: stores the state, logs and metrics of Ray clusters, and serves them after a cluster is gone."""

from typing import TYPE_CHECKING, Any

from rayhistory.ray_address import get_job_submission_client_cluster_info

if TYPE_CHECKING:
    from rayhistory.library import connect

__all__ = ["__version__", "connect", "get_job_submission_client_cluster_info"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the library only when it is used, because the collector must not load it."""
    if name == "connect":
        from importlib import import_module  # noqa: PLC0415

        return import_module("rayhistory.library").connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
