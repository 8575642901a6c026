"""Sketches: a table of counters into which a gradient is hashed, and buckets of values with those of equal numbers."""
