"""Fuzzing of the parsers that read data of clusters, stores and visitors."""
