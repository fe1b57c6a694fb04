"""Tail a node's log files and ship the appended bytes."""
