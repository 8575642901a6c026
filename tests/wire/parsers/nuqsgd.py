import math

import numpy as np

from tests.wire.levels import levels


def parse(payload, config, shape):
    n, bits, block = math.prod(shape), config["bits"], config["block"]
    blocks, top = -(-n // block), 2 ** (bits - 1) - 1
    norms, q = np.frombuffer(payload[: 4 * blocks], "<f4"), levels(payload[4 * blocks :], bits, n)
    share = np.sign(q) * np.exp2(np.abs(q) - top, dtype=np.float32)
    return np.repeat(norms, block)[:n] * share
