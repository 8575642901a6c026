"""Methods with signs: those of a momentum, and those with two means a block."""
