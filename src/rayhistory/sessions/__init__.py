"""Every key in the bucket, and what the small objects behind some of them say."""

from rayhistory.layout.keys import EventObject, Layout
from rayhistory.layout.records import (
    LARGEST_RECORD,
    EndRecord,
    NodeSeal,
    Owner,
    StartRecord,
    Tombstone,
    VanishedRecord,
    read_record,
)
from rayhistory.layout.session import SessionRef

__all__ = [
    "LARGEST_RECORD",
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
