"""A private Ray cluster on this machine, for `rayhistory run` and `rayhistory demo`."""
