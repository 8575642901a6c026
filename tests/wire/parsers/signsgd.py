import math


def parse(payload, config, shape):
    n = math.prod(shape)
    if config["ties"] == "zero":
        pairs = (payload[i >> 2] >> (6 - 2 * (i & 3)) & 3 for i in range(n))
        return [{0b11: 1.0, 0b10: -1.0}.get(pair, 0.0) for pair in pairs]
    return [1.0 if payload[i >> 3] >> (i & 7) & 1 else -1.0 for i in range(n)]
