"""HTTP of the history server: middleware, session routing, response cache and error responses."""
