"""The history server: sessions in the store, served as if their clusters were alive. Read-only by construction."""
