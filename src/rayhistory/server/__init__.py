"""The history server: serves sessions from the store as if their clusters were alive. Read-only by construction."""
