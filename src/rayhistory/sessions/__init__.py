"""Sessions in the store: their identity, keys, records and catalog."""

from rayhistory.sessions.keys import Layout
from rayhistory.sessions.kuberay_keys import EventObject
from rayhistory.sessions.records import (
    MAX_RECORD_BYTES,
    EndRecord,
    NodeSeal,
    Owner,
    StartRecord,
    Tombstone,
    VanishedRecord,
    read_record,
)
from rayhistory.sessions.ref import SessionRef

__all__ = [
    "MAX_RECORD_BYTES",
    "EndRecord",
    "EventObject",
    "Layout",
    "NodeSeal",
    "Owner",
    "SessionRef",
    "StartRecord",
    "Tombstone",
    "VanishedRecord",
    "read_record",
]
