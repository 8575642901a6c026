"""Methods of random rounding to levels that ranks share, that are optimised, or that are powers of two."""
