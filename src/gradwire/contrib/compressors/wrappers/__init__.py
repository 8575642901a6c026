"""Entropy coding of the payload of another method."""
