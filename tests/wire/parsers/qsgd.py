import math

import numpy as np


def parse(payload, config, shape):
    n, bits, block = math.prod(shape), config["bits"], config["block"]
    blocks = -(-n // block)
    norms, codes = np.frombuffer(payload[: 4 * blocks], "<f4"), int.from_bytes(payload[4 * blocks :], "little")
    s = 2 ** (bits - 1) - 1
    out = np.zeros(n, np.float32)
    for i in range(n):
        code = codes >> (i * bits) & (2**bits - 1)
        code -= 2**bits if code >> (bits - 1) else 0
        out[i] = np.float32(code) * (norms[i // block] / np.float32(s))
    return out
