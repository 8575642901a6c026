"""Memories, one in each file, which has the memory's name. The contract is in ``base``."""
