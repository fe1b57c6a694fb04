"""Receive the events that Ray posts to /v1/events, route them and write them to the spool."""
