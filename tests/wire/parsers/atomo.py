import math

import numpy as np


def parse(payload, config, shape):
    n = math.prod(shape)
    rows = shape[0] if shape else 1
    columns = n // rows
    if min(rows, columns) <= 1:
        columns = math.isqrt(n)
        rows = math.ceil(n / columns)
    used, atoms = np.frombuffer(payload[:8], "<i4")
    values = np.frombuffer(payload[8 : 8 + used], "<f4")
    if atoms < 0:
        return values
    left, right = values[: atoms * rows].reshape(atoms, rows), values[atoms * rows :].reshape(atoms, columns)
    return (left.T @ right).reshape(-1)[:n]
