"""Rules for what was not recorded."""
