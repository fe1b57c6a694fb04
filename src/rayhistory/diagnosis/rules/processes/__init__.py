"""Rules for processes that died."""
