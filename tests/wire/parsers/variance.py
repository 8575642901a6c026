import math

import numpy as np


def parse(payload, config, shape):
    n = math.prod(shape)
    used, top, k = np.frombuffer(payload[:12], "<i4")
    stream = payload[12 : 12 + used]
    bitmap_bytes, code_bytes = -(-n // 8), -(-k // 2)
    if n <= 2**28 and 4 * k <= bitmap_bytes + code_bytes:
        words = np.frombuffer(stream, "<u4")
        index, codes = words & (2**28 - 1), words >> 28
    else:
        bits = np.unpackbits(np.frombuffer(stream[:bitmap_bytes], np.uint8), bitorder="little")
        index = np.flatnonzero(bits[:n])
        pairs = np.frombuffer(stream[bitmap_bytes:], np.uint8)
        codes = np.stack([pairs & 15, pairs >> 4], axis=1).reshape(-1)[:k]
    out = np.zeros(n, np.float32)
    for i, code in zip(index, codes, strict=True):
        size = math.nan if top == 255 else 2.0 ** (int(top) - 127 - (int(code) & 7))
        out[i] = -size if code & 8 else size
    return out
