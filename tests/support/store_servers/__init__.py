"""Object stores for tests: real servers if a package registry has one, else small doubles."""
