import math

import numpy as np


def philox(counter, key):
    """Philox4x32-10 of (counter, 0, 0, 0) with the key (key, 0)."""
    x, k = [counter & 0xFFFFFFFF, counter >> 32, 0, 0], [key, 0]
    for _ in range(10):
        a, b = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [(b >> 32) ^ x[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ x[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x


def parse(payload, config, shape):
    n, run = math.prod(shape), config["run"]
    units = -(-n // run)
    k = min(units, max(1, math.ceil(round(config["ratio"] * n / run, 6))))
    data = np.frombuffer(payload, "<f4")
    values, head = data[:-5].reshape(k, run), data[-5:]
    seed = sum(round(float(head[1 + i] / head[0])) << 8 * i for i in range(4))
    out = np.zeros(units * run, np.float32)
    for j in range(k):
        edge, size = j * units // k, (j + 1) * units // k - j * units // k
        unit = edge + (philox(j >> 2, seed)[j & 3] * size >> 32)
        out[unit * run : unit * run + run] = values[j]
    return out[:n]
