import math

import numpy as np

from tests.wire.ternary import stream


def parse(payload, config, shape):
    return np.float32(config["threshold"]) * stream(payload, math.prod(shape)).astype(np.float32)
