"""Routing of requests: sign-in, the session that a request names, live clusters, and health."""
