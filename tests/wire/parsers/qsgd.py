import math

import numpy as np

from tests.wire.levels import levels, one_norm


def omega(size, s, norm):
    if norm == "linf":
        return (math.sqrt(1 + (size - 1) / s**2) - 1) / 2
    return min(size / (4 * s**2), math.sqrt(size) / s)


def parse(payload, config, shape):
    n, bits, block = math.prod(shape), config["bits"], config["block"]
    s = config["levels"] or 2 ** (bits - 1) - 1
    shrink = 1 / (1 + omega(max(1, min(block or n, n)), s, config["norm"])) if config["scaled"] else 1.0
    if block is None:
        return one_norm(payload, bits, s, n, shrink)
    blocks = -(-n // block)
    step = np.frombuffer(payload[: 4 * blocks], "<f4") / np.float32(s) * np.float32(shrink)
    return np.repeat(step, block)[:n] * levels(payload[4 * blocks :], bits, n)
