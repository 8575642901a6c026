"""Methods that round each element by itself or by its magnitude: 16-bit floats, 8 bits with a scale, tagged fixed
point.
"""
