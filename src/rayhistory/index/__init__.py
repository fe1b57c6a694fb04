"""The index of a session: Parquet tables built from its objects, and stored beside them."""
