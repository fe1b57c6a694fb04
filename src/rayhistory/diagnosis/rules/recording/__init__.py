"""Rules for missing data."""
