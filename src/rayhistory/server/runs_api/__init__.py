"""The history API of runs: jobs across sessions, comparisons, and the fleet."""
