import math

import numpy as np

from tests.wire.ternary import dense, stream


def parse(payload, config, shape):
    n, adaptive = math.prod(shape), config.get("wire", "dense") == "adaptive"
    return np.float32(config["threshold"]) * (stream(payload, n) if adaptive else dense(payload, n)).astype(np.float32)
