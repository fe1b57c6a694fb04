"""The history API of metrics: charts, PromQL and points of stored samples."""
