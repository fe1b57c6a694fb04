"""HTTP of the history server: middleware, admission, response cache and error responses."""
