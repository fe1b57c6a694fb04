"""Fuzzing of everything that reads what a cluster, a bucket or a visitor wrote."""
