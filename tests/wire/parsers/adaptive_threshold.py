import math

import numpy as np


def parse(payload, config, shape):
    n = math.prod(shape)
    segments = -(-n // 65536)
    (used,) = np.frombuffer(payload[:4], "<i4")
    positive, negative = np.frombuffer(payload[4:12], "<f4")
    counts = np.frombuffer(payload[12 : 12 + 4 * segments], "<i4")
    stream = np.frombuffer(payload[12 + 4 * segments :][:used], np.uint8)
    out = np.zeros(n, np.float32)
    if used == -(-n // 4):
        bits = np.unpackbits(stream, bitorder="little")[: 2 * n].reshape(n, 2)
        out[bits[:, 0] == 1] = positive
        out[bits[:, 1] == 1] = negative
        return out
    k = 8 * used // 17
    signs = np.unpackbits(stream[2 * k :], bitorder="little")[:k]
    low = stream[: 2 * k].view("<u2")
    out[np.repeat(np.arange(segments) * 65536, counts) + low] = np.where(signs, negative, positive)
    return out
