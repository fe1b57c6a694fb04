"""The object store interface and its backends, used by collector and server."""

from rayhistory.storage.store import PART_BYTES, Listing, ObjectInfo, Store, open_store

__all__ = ["PART_BYTES", "Listing", "ObjectInfo", "Store", "open_store"]
