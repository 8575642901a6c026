import math
import struct


def parse(payload, config, shape):
    step, codes = (1.0, payload) if config["scale"] == "unit" else (*struct.unpack("<f", payload[:4]), payload[4:])
    return [step if codes[i >> 3] >> (7 - (i & 7)) & 1 else -step for i in range(math.prod(shape))]
