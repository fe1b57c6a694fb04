"""The rules of a diagnosis: one file per code. Each is a pure function of facts, with an example."""
