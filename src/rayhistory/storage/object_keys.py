"""Validation of object keys."""

from rayhistory.errors import StoreError


def checked_key(key: str) -> str:
    """Return the key. Raise an error if a store could read it as another key, or as a path outside of the store."""
    if any(part in {"", ".", ".."} for part in key.split("/")) or any(ord(char) < 32 for char in key):
        raise StoreError(f"invalid key {key!r}")
    return key
