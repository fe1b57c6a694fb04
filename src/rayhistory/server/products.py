"""The products of this release: what servers and commands build beside a session's tables."""

PRODUCTS: tuple[str, ...] = (
    "rayhistory.diagnosis.product:PRODUCT",
    "rayhistory.runs.product:PRODUCT",
    "rayhistory.metric_columns.product:PRODUCT",
    "rayhistory.search.product:PRODUCT",
)
"""Dotted paths, in the order in which they are built: "rayhistory.diagnosis.product:PRODUCT"."""
