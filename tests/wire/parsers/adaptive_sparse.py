import math

import numpy as np


def parse(payload, config, shape):
    n = math.prod(shape)
    segments = -(-n // 65536)
    (used,) = np.frombuffer(payload[:4], "<i4")
    (step,) = np.frombuffer(payload[4:8], "<f4")
    a, b = np.frombuffer(payload[8:16], "<i4")
    counts = np.frombuffer(payload[16 : 16 + 8 * segments], "<i4")
    stream = payload[16 + 8 * segments :][:used]
    if a == -1:
        return np.frombuffer(stream, "<f4")
    out = np.zeros(n, np.float32)
    low = np.frombuffer(stream[4 * a : 6 * a + 2 * b], "<u2")
    starts = np.arange(segments) * 65536
    out[np.repeat(starts, counts[:segments]) + low[:a]] = np.frombuffer(stream[: 4 * a], "<f4")
    negative = np.unpackbits(np.frombuffer(stream[6 * a + 2 * b :], np.uint8), bitorder="little")[:b]
    out[np.repeat(starts, counts[segments:]) + low[a:]] = np.where(negative, -step, step)
    return out
