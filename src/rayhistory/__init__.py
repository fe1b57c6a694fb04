"""The Ray History Server: what a Ray cluster knew, kept, and given back when the cluster is gone."""

__version__ = "0.1.0"
