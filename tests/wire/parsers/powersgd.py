import math

import numpy as np


def parse(payload, config, shape):
    m, columns = shape[0], math.prod(shape) // shape[0]
    r = min(config["rank"], m, columns)
    p = np.frombuffer(payload[: 4 * r * m], "<f4").reshape(r, m)
    q = np.frombuffer(payload[4 * r * m : 4 * r * (m + columns)], "<f4").reshape(r, columns)
    return p.T @ q
