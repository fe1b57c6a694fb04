"""Commands for coding agents."""
