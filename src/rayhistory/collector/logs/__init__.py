"""Tail a node's log files and upload the appended bytes."""
