"""Log files of a session: find the file and the byte range of a request, and stream it."""
