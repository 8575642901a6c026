"""The C library's allocator, in a process that only serves: memory of messages is kept for the next ones.

glibc gives what was freed back to the system as soon as a few megabytes lie free at the end of a heap; messages of a
megabyte that come and go would then be written to fresh pages again and again, which costs more than to receive them.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Of ``mallopt``."""

KEPT = 64 * 2**20
"""Bytes that a heap may keep free at its end."""

LARGE = 32 * 2**20
"""Bytes from which on memory comes from the system each time; glibc allows no more."""


def keep_memory() -> bool:
    """Ask for it; whether there is such an allocator."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(TRIM_THRESHOLD, KEPT)) and bool(mallopt(MMAP_THRESHOLD, LARGE))
