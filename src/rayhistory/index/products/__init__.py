"""Products: what is derived from a session beside its tables, each visible by its own manifest."""
