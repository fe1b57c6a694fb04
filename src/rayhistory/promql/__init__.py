"""PromQL over samples in memory, with the semantics of Prometheus 3. Pure: no files, no network, no clock."""
