"""The Model Context Protocol: tools over the library, for coding agents."""
