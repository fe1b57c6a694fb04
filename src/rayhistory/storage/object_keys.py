"""Validation of object keys."""

from rayhistory.errors import StoreError


def checked_key(key: str) -> str:
    """Return the key; raise if a store could take it for another key or for a path outside the store."""
    if any(part in {"", ".", ".."} for part in key.split("/")) or any(ord(char) < 32 for char in key):
        raise StoreError(f"invalid key {key!r}")
    return key
