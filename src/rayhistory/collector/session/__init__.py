"""One session on this node: discovery, records, and everything collected for it."""
