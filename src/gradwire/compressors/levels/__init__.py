"""Random rounding: to levels of the norm of a block or of the whole tensor, to powers of two."""
