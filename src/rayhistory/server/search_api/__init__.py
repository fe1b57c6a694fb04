"""The history API of searches in log files, in one session or in all."""
