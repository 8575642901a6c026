import math

import numpy as np

from tests.wire.bits import bits, rice


def carried(payload, threshold, at):
    """The threshold, from the four bytes ``at`` the payload if it is "auto", and the payload without them."""
    if threshold != "auto":
        return np.float32(threshold), payload
    return np.frombuffer(payload[at : at + 4], "<f4")[0], payload[:at] + payload[at + 4 :]


def dense(codes, n):
    codes = np.frombuffer(codes, np.uint8)
    shifted = codes[:, None] >> np.array([6, 4, 2, 0], np.uint8) & 3
    return np.array([0, 0, -1, 1])[shifted.reshape(-1)[:n]]


def varint(data):
    k = 0
    for i, byte in enumerate(data):
        k |= (byte & 127) << 7 * i
        if byte < 128:
            return k, data[i + 1 :]
    raise AssertionError("the count does not end")


def stream(payload, n):
    """+1, -1 and 0 from a payload of variable size."""
    used = int.from_bytes(payload[:4], "little")
    form, data, out = payload[4], payload[5 : 4 + used], np.zeros(n, np.int64)
    if form == 0:
        return dense(data, n)
    if form == 1:
        where, signs = np.flatnonzero(bits(data)[:n]), bits(data[math.ceil(n / 8) :])
        out[where] = 2 * signs[: len(where)].astype(np.int64) - 1
        return out
    k, data = varint(data)
    if form == 255:
        words = np.frombuffer(data, "<u4")
        assert len(words) == k
        out[words >> 1] = 2 * (words & 1).astype(np.int64) - 1
        return out
    b, signs = form - 2, math.ceil(k / 8)
    end = signs + math.ceil(k * b / 8)
    where = rice(data[signs:end], data[end:], k, b)
    out[where] = 2 * bits(data[:signs])[:k].astype(np.int64) - 1
    return out
