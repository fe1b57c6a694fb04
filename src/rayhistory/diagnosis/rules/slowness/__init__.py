"""Rules for time that was lost."""
