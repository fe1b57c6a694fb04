"""Rules for exceptions of user code, in tasks, actors and drivers."""
