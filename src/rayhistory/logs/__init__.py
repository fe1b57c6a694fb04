"""Log files of a session, packed or plain, behind one interface: list, size, byte range."""
