"""Rules for nodes, resources and the end of jobs."""
