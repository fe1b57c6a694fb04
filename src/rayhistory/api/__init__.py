"""The client side of the HTTP API, for programs, notebooks, the command line and agents."""
