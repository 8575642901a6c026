import math

import numpy as np


def parse(payload, config, shape):
    n = math.prod(shape)
    width = min(config["size"], n)
    d = min(config["components"], width)
    slices = math.ceil(n / width)
    values = np.frombuffer(payload, "<f4")
    dense, y, basis = values[:n], values[n : n + slices * d], values[n + slices * d :]
    return dense + (y.reshape(slices, d) @ basis.reshape(d, width)).reshape(-1)[:n]
