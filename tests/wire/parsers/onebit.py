import math


def parse(payload, config, shape):
    return [1.0 if payload[i >> 3] >> (7 - (i & 7)) & 1 else -1.0 for i in range(math.prod(shape))]
