"""Stored samples of a session by metric, as a product beside its tables."""
