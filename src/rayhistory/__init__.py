"""The Ray History Server: what a Ray cluster knew, kept, and given back when the cluster is gone."""

from rayhistory.rayaddress import get_job_submission_client_cluster_info

__all__ = ["__version__", "get_job_submission_client_cluster_info"]

__version__ = "0.1.0"
