"""Methods that change the basis of blocks: rotated and rounded to a shared grid, or as the few largest cosine waves."""
