import math

import numpy as np


def parse(payload, config, shape):
    n = math.prod(shape)
    segments = -(-n // 65536)
    (used,) = np.frombuffer(payload[:4], "<i4")
    counts = np.frombuffer(payload[4 : 4 + 4 * segments], "<i4")
    stream = payload[4 + 4 * segments :]
    if used == 4 * n:
        return np.frombuffer(stream[: 4 * n], "<f4")
    k = used // 6
    out = np.zeros(n, np.float32)
    low = np.frombuffer(stream[4 * k : 6 * k], "<u2")
    out[np.repeat(np.arange(segments) * 65536, counts) + low] = np.frombuffer(stream[: 4 * k], "<f4")
    return out
