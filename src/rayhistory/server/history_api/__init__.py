"""The history API below `api/history/`, one module per resource."""
