"""Notifications: tell people and programs when a run fails, gets slower, works again, or is lost."""
