"""Diagnosis of a session: why it failed, why it was slow, and what was not recorded."""
