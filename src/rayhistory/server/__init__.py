"""The history server.

It serves sessions from the store as if their clusters were alive, and never writes to a cluster.
"""
