import math

import numpy as np


def trits(byte):
    return [byte // weight % 3 - 1 for weight in (81, 27, 9, 3, 1)] if byte < 243 else [0] * (5 * (byte - 241))


def parse(payload, config, shape):
    n, block = math.prod(shape), config["block"]
    blocks = -(-n // block)
    scales = np.frombuffer(payload[4 : 4 + 4 * blocks], "<f4")
    lengths = np.frombuffer(payload[4 + 4 * blocks : 4 + 6 * blocks], "<i2")
    stream, out = payload[4 + 6 * blocks :], np.zeros(n, np.float32)
    at = 0
    for b in range(blocks):
        q = [trit for byte in stream[at : at + lengths[b]] for trit in trits(byte)]
        part = out[b * block : (b + 1) * block]
        part[:] = np.float32(scales[b]) * np.array(q[: len(part)] or [0] * len(part), np.float32)
        at += lengths[b]
    return out
