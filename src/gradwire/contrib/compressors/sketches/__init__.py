"""Methods with sketches, tables of counters into which a gradient is hashed, and with buckets of
equally many values.
"""
