"""Packs: one object per flush with the appended bytes of any number of log files."""
