"""The products of this release, which servers and commands build beside a session's tables."""

PRODUCTS: tuple[str, ...] = (
    "rayhistory.diagnosis.diagnosis_product:PRODUCT",
    "rayhistory.runs.summary_product:PRODUCT",
    "rayhistory.metric_columns.columns_product:PRODUCT",
    "rayhistory.search.search_product:PRODUCT",
)
"""Dotted paths of the products, in the order in which they are built."""
