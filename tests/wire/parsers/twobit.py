import math

import numpy as np

from tests.wire.ternary import carried, dense, stream


def parse(payload, config, shape):
    n, adaptive = math.prod(shape), config.get("wire", "dense") == "adaptive"
    threshold, payload = carried(payload, config["threshold"], 4 if adaptive else 0)
    return threshold * (stream(payload, n) if adaptive else dense(payload, n)).astype(np.float32)
