"""Diagnosis of a session: causes of failures, causes of slowness, and missing data."""
