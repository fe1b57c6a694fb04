"""The history API of runs: jobs across sessions, comparisons, and figures of the fleet."""
