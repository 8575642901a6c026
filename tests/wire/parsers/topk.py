import math

import numpy as np

from tests.wire.bits import bits, shift_of, split_rice

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}


def parse(payload, config, shape):
    n = math.prod(shape)
    k = min(n, max(1, math.ceil(round(config["ratio"] * n, 6))))
    kind, form = config.get("values", "float32"), config.get("indices", "block")
    values = as_float(payload[: k * WIDTHS[kind]], kind)
    start = k * WIDTHS[kind]
    out = np.zeros(n, np.float32)
    out[places(payload, start, n, k, form)] = values
    return out


def as_float(data, kind):
    if kind == "bfloat16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, "<f4" if kind == "float32" else "<f2").astype(np.float32)


def places(payload, start, n, k, form):
    aligned, segments = -(-start // 4) * 4, -(-n // 65536)
    if form == "auto":
        rice = -(-k * shift_of(n, k) // 8) - (-(k + (n - k >> shift_of(n, k))) // 8)
        sizes = {"block": 4 * segments + 2 * k, "raw": 4 * k, "rice": rice, "bitmap": -(-n // 8)}
        form = min(sizes, key=sizes.get)
    if form == "block":
        counts = np.frombuffer(payload[aligned : aligned + 4 * segments], "<i4")
        low = np.frombuffer(payload[aligned + 4 * segments :], "<u2")
        return np.repeat(np.arange(segments) * 65536, counts) + low
    if form == "raw":
        return np.frombuffer(payload[aligned:], "<i4")
    if form == "rice":
        return split_rice(payload[start:], n, k)
    return np.flatnonzero(bits(payload[start:])[:n])
