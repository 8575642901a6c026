import math

import numpy as np

from tests.wire.bits import bits, shift_of, split_rice

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}


def parse(payload, config, shape):
    n = math.prod(shape)
    k = min(n, max(1, math.ceil(round(config["ratio"] * n, 6))))
    kind, form = config.get("values", "float32"), config.get("indices", "block")
    sizes = {"values": k * WIDTHS[kind], **fields(n, k, form)}
    parts = split(payload, sizes, {"values": WIDTHS[kind], "counts": 4, "raw": 4, "indices": 2})
    out = np.zeros(n, np.float32)
    out[places(parts, n, k)] = as_float(parts["values"], kind)
    return out


def split(payload, sizes, widths):
    """The fields by name: those of wide items come first."""
    parts, start = {}, 0
    for name in sorted(sizes, key=lambda name: -widths.get(name, 1)):
        parts[name] = payload[start : start + sizes[name]]
        start += sizes[name]
    assert start == len(payload)
    return parts


def fields(n, k, form):
    rice = -(-k * shift_of(n, k) // 8) - (-(k + (n - k >> shift_of(n, k))) // 8)
    forms = {
        "block": {"counts": 4 * -(-n // 65536), "indices": 2 * k},
        "raw": {"raw": 4 * k},
        "rice": {"rice": rice},
        "bitmap": {"bitmap": -(-n // 8)},
    }
    return forms[min(forms, key=lambda name: sum(forms[name].values())) if form == "auto" else form]


def as_float(data, kind):
    if kind == "bfloat16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, "<f4" if kind == "float32" else "<f2").astype(np.float32)


def places(parts, n, k):
    if "counts" in parts:
        counts = np.frombuffer(parts["counts"], "<i4")
        return np.repeat(np.arange(len(counts)) * 65536, counts) + np.frombuffer(parts["indices"], "<u2")
    if "raw" in parts:
        return np.frombuffer(parts["raw"], "<i4")
    if "rice" in parts:
        return split_rice(parts["rice"], n, k)
    return np.flatnonzero(bits(parts["bitmap"])[:n])
