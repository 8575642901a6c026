import math

import numpy as np

FORMATS = {"e4m3": (3, 7, 448), "e5m2": (2, 15, 57344)}


def float8(byte, form):
    fraction, bias, _ = FORMATS[form]
    sign, exponent, mantissa = -1.0 if byte & 0x80 else 1.0, (byte & 0x7F) >> fraction, byte & (1 << fraction) - 1
    if byte & 0x7F == 0x7F or (form == "e5m2" and byte & 0x7F > 0x7C):
        return math.nan
    if form == "e5m2" and byte & 0x7F == 0x7C:
        return sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - fraction)
    return sign * math.ldexp((1 << fraction) + mantissa, exponent - bias - fraction)


def parse(payload, config, shape):
    n, block, form = math.prod(shape), config["block"], config["format"]
    blocks = -(-n // block)
    scales = np.frombuffer(payload[: 4 * blocks], "<f4") / np.float32(FORMATS[form][2])
    values = np.array([float8(byte, form) for byte in payload[4 * blocks :]], np.float32)
    return values * np.repeat(scales, block)[:n]
