"""Authentication and authorization of visitors: who they are and which namespaces they may see.

Nothing here knows sessions, stores or routes.
"""

from rayhistory.access.factory import open_access
from rayhistory.access.visitor import Access, Visitor

__all__ = ["Access", "Visitor", "open_access"]
