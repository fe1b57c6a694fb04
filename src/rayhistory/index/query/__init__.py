"""Queries over the tables of an open index."""
