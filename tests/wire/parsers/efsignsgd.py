import math

import numpy as np


def parse(payload, config, shape):
    n, block = math.prod(shape), config["block"]
    blocks = -(-n // block)
    scales, signs = np.frombuffer(payload[: 4 * blocks], "<f4"), payload[4 * blocks :]
    return [scales[i // block] if signs[i >> 3] >> (i & 7) & 1 else -scales[i // block] for i in range(n)]
