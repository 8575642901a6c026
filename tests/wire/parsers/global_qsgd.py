import math

import numpy as np


def parse(payload, config, shape):
    n, levels = math.prod(shape), config["levels"]
    if n == 0:
        return np.zeros(0, np.float32)
    words = -(-n // 4)
    world = int.from_bytes(payload[4 + 4 * words : 8 + 4 * words], "little", signed=True)
    norm = np.frombuffer(payload[:4], "<f4")[0]
    step = norm / np.float32(levels * world) if 0 < world <= 255 // (2 * levels) else np.float32(np.nan)
    sums = np.frombuffer(payload[4 : 4 + n], np.uint8).astype(np.int32)
    return (sums - levels * world).astype(np.float32) * step
