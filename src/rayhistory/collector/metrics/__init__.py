"""Sample the node's Prometheus metrics into small objects."""
