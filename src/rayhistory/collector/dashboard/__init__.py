"""Poll the head's dashboard for data that Ray does not export as events."""
