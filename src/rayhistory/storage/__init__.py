"""The object store, behind one small seam: the only thing that the collector and the server share."""

from rayhistory.storage.seam import Listing, ObjectInfo, Store, open_store

__all__ = ["Listing", "ObjectInfo", "Store", "open_store"]
