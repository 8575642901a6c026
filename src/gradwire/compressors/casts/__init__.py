"""Elements rounded each by itself, or by its magnitude: 16-bit floats, 8 bits with a scale, tagged fixed point."""
