import math

import numpy as np


def parse(payload, config, shape):
    n, block = math.prod(shape), config["block"]
    blocks = -(-n // block)
    means, signs = np.frombuffer(payload[: 8 * blocks], "<f4"), payload[8 * blocks :]
    return [means[2 * (i // block) + (signs[i >> 3] >> (i & 7) & 1)] for i in range(n)]
