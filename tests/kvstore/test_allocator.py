"""A server keeps the memory of messages for the next ones."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource
from gradwire.kvstore.server.server import keep_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
SIZE = 2**20 + 64

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [libc.malloc(SIZE) for _ in range(8)]
        for block in blocks:
            ctypes.memset(block, 1, SIZE)
        for block in blocks[::-1]:
            libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

without = faults()
assert keep_memory()
print(without, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_messages_that_come_and_go_do_not_touch_fresh_pages():
    told = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, timeout=120)
    without, kept = map(int, told.stdout.split())
    assert without > 20 * 256
    # Once for all: eight blocks of 257 pages.
    assert kept < 9 * 257
