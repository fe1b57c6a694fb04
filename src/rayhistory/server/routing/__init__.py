"""Routing of requests: sign-in, the session of a request, live clusters, and health."""
