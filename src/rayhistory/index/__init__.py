"""The index of a session: its objects folded into Parquet tables, stored beside it."""
