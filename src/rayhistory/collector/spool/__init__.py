"""Spool: the write-ahead log on local disk, and its upload to the store."""
