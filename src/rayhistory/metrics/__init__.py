"""Stored metrics samples: their format, and a reader."""
