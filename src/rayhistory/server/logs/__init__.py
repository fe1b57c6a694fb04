"""Log files of a session: where they are read, how a request is resolved to bytes, and how they are streamed."""
