"""Helpers that the parsers of rounded codes share; no payload is of this name."""

import numpy as np


def levels(codes, bits, n):
    """Two's complement of ``bits`` bits, the first element in the lowest bits."""
    stream, raw = int.from_bytes(codes, "little"), []
    for i in range(n):
        code = stream >> (i * bits) & (2**bits - 1)
        raw.append(code - 2**bits if code >> (bits - 1) else code)
    return np.array(raw, np.float32)


def one_norm(payload, bits, top, n, shrink=1.0):
    """Levels of one norm for the whole tensor."""
    if n == 0:
        return np.zeros(0, np.float32)
    step = np.frombuffer(payload[:4], "<f4")[0] / np.float32(top)
    return np.float32(shrink) * step * levels(payload[4:], bits, n)
