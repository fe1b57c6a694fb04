"""Keep indexes up to date: build on demand and ahead, with leases, slots and caches."""
