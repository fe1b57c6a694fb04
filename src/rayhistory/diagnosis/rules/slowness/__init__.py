"""Rules for slowness."""
