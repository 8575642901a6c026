import math


def parse(payload, config, shape):
    codes = [payload[i >> 2] >> (6 - 2 * (i & 3)) & 3 for i in range(math.prod(shape))]
    return [{3: 1.0, 2: -1.0}.get(code, 0.0) * config["threshold"] for code in codes]
