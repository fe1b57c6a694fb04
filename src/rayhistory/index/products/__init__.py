"""Products: data derived from a session besides its tables. Each becomes visible by its own manifest."""
