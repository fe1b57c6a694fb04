"""Sessions as wholes: copied, brought in from elsewhere, and removed when their time is over."""
