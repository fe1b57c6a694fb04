"""Runs: jobs across sessions, from one small summary per session. Trends, comparisons and the fleet."""
