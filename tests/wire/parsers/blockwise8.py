import math

import numpy as np

from tests.wire.parsers.dynamic8 import dynamic_map


def parse(payload, config, shape):
    n, block = math.prod(shape), config["block"]
    blocks = -(-n // block)
    scales = np.repeat(np.frombuffer(payload[: 4 * blocks], "<f4"), block)[:n]
    if config["kind"] == "linear":
        return np.frombuffer(payload[4 * blocks :], np.int8).astype(np.float32) * (scales / np.float32(127))
    return dynamic_map()[np.frombuffer(payload[4 * blocks :], np.uint8)] * scales
