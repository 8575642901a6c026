import math

import numpy as np

from tests.wire.ternary import carried, stream


def parse(payload, config, shape):
    threshold, payload = carried(payload, config["threshold"], 4)
    return threshold * stream(payload, math.prod(shape)).astype(np.float32)
