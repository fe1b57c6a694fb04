"""Ray's dashboard API below the path of a session, one module per family of endpoints."""
