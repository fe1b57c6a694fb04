"""Object stores for the tests: real servers where a registry has one, small doubles where none has."""
