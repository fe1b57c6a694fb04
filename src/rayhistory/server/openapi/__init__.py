"""The OpenAPI document of the history API."""
