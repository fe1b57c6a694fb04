"""The `rayhistory` command, for people."""
