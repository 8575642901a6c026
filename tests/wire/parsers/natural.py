import math

import numpy as np


def parse(payload, config, shape):
    n, block = math.prod(shape), config["block"]
    blocks = -(-n // block)
    out = np.zeros(n, np.float32)
    for i in range(n):
        base, code = payload[i // block], payload[blocks + i]
        sign, m = -1.0 if code >> 7 else 1.0, code & 127
        if base == 255:
            out[i] = math.nan
        elif m:
            out[i] = sign * (math.ldexp(1.0, base + m - 127) if base + m < 255 else math.inf)
    return out
