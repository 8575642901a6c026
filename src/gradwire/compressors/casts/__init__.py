"""Methods that round each element by itself or by its magnitude: 16-bit floats, and 8 bits with a scale."""
