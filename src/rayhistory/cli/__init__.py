"""The `rayhistory` command."""
