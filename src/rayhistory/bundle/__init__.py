"""One session as one file: an HTML report to read without a server, or a zip archive of all data for a server."""
