"""The fold: from a session's objects to the tables of its index, in a process of its own."""
