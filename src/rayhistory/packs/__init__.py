"""Packs: one object per upload, with the new bytes of many log files."""
