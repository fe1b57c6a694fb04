"""Events to rows: all tolerance and counting is here, in pure Python, without files or clocks."""
