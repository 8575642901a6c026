import math
import struct

import numpy as np


def parse(payload, config, shape):
    n, bound = math.prod(shape), config["bound"]
    (used,) = struct.unpack_from("<i", payload)
    stream = payload[4 : 4 + used]
    out = np.zeros(n, np.float32)
    if n and stream[0] == 1:
        out[:] = np.frombuffer(stream[1:], "<f4")
        return out
    at = 1 + -(-n // 4)
    for i in range(n):
        tag = stream[1 + (i >> 2)] >> 2 * (i & 3) & 3
        if tag == 1:
            out[i] = math.ldexp(-1 if stream[at] >> 7 else 1, -bound) * (stream[at] & 127)
        elif tag == 2:
            (code,) = struct.unpack_from("<H", stream, at)
            out[i] = math.ldexp(-1 if code >> 15 else 1, -15) * (code & 32767)
        elif tag == 3:
            (out[i],) = struct.unpack_from("<f", stream, at)
        at += (0, 1, 2, 4)[tag]
    return out
