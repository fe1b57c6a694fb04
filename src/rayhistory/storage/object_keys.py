"""What a key may look like, in every store."""

from rayhistory.errors import StoreError


def checked_key(key: str) -> str:
    """The key itself; one that a store could read as another, or as a path that leads out of it, is refused."""
    if any(part in {"", ".", ".."} for part in key.split("/")) or any(ord(char) < 32 for char in key):
        raise StoreError(f"not a key: {key!r}")
    return key
