"""Ray History Server: stores the state, logs and metrics of Ray clusters, and serves them after a cluster is gone."""

from rayhistory.ray_address import get_job_submission_client_cluster_info

__all__ = ["__version__", "get_job_submission_client_cluster_info"]

__version__ = "0.1.0"
