"""Commands on whole sessions: copy, import-dir, snapshot, retention, pin and unpin."""
