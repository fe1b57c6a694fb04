"""A session folded once into a few Parquet tables beside it, and opened from there by everyone."""
