"""One process beside each Ray node: takes its events, its logs and its dashboard's answers to the store."""
