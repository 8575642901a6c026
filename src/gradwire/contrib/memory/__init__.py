"""Memories of methods of the second tier."""
