"""The fold: builds the tables of an index from a session's objects, in a separate process."""
