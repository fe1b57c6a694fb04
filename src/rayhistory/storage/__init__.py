"""The object store interface and its backends: all that collector and server share."""

from rayhistory.storage.store import PART_BYTES, Listing, ObjectInfo, Store, open_store

__all__ = ["PART_BYTES", "Listing", "ObjectInfo", "Store", "open_store"]
