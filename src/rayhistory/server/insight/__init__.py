"""What explains a session: its diagnosis, as API and page."""
