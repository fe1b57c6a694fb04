"""One session as one file: a report to read without a server, or all data in a zip archive that a server opens."""
