"""Convert events to rows. Pure functions: no files, no network, no clock."""
