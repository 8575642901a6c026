import math

import numpy as np

from tests.wire.bits import bits


def parse(payload, _config, shape):
    n = math.prod(shape)
    form, k = np.frombuffer(payload[4:12], "<i4")
    values, rest = np.frombuffer(payload[12 : 12 + 4 * k], "<f4"), payload[12 + 4 * k :]
    out = np.zeros(n, np.float32)
    if form == 0:
        return values
    if form == 1:
        out[np.flatnonzero(bits(rest)[:n])] = values
        return out
    segments = -(-n // 65536)
    counts, low = (
        np.frombuffer(rest[: 4 * segments], "<i4"),
        np.frombuffer(rest[4 * segments : 4 * segments + 2 * k], "<u2"),
    )
    out[np.repeat(np.arange(segments) * 65536, counts) + low] = values
    return out
