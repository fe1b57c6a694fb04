"""Collector: the process beside each Ray node that stores its events, logs, metrics and dashboard responses."""
