"""Convert events to rows, in pure Python: no files, no network, no clock."""
