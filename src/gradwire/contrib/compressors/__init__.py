"""Compressors of the second tier, by family."""
