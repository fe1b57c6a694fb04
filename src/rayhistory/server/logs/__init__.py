"""Log files of a session: where they are, which bytes a request means, and how they are streamed."""
