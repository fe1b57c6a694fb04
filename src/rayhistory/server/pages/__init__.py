"""HTML pages of the server, and Ray's own frontend."""
