"""The rules of a diagnosis: one file per code, each a pure function of facts with a worked example."""
