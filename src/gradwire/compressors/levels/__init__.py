"""Methods of random rounding: to levels of the norm of a block or of the whole tensor, and to powers of two."""
