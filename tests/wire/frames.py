"""Frames for the tests of this folder, and a way to forge others."""

import json
import struct
import zlib

import torch

from gradwire import registry
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.wire import frame


def small() -> bytes:
    """A frame of a hundred bytes."""
    code = TwoBit(threshold=0.5)
    return frame(code, (3,), code.compress(torch.tensor([0.6, -0.5, 0.1])))


def sparse() -> bytes:
    """A frame whose payload has to be consistent in itself."""
    code = TopK(ratio=0.4)
    return frame(code, (5,), code.compress(torch.tensor([1.0, -5.0, 3.0, -2.0, 4.0])))


def every():
    """One compressor of each registered name, with its defaults."""
    return [registry.build("compressors", name) for name in registry.names("compressors")]


def forge(header, payload: bytes = b"", *, version: int = 1, magic: bytes = b"GRDW", nbytes=None, header_nbytes=None):
    """A frame that says what the arguments say, with checksums that match."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    nbytes = len(payload) if nbytes is None else nbytes
    header_nbytes = len(text) if header_nbytes is None else header_nbytes
    start = struct.pack("<4sIQII", magic, version, nbytes, header_nbytes, zlib.crc32(payload))
    return start + struct.pack("<I", zlib.crc32(text, zlib.crc32(start))) + text + payload
