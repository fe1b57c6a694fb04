"""The object store interface and its backends: all that collector and server share."""

from rayhistory.storage.store import Listing, ObjectInfo, Store, open_store

__all__ = ["Listing", "ObjectInfo", "Store", "open_store"]
