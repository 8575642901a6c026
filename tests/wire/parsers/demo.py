import math

import numpy as np


def cuts(size, chunk):
    whole, rest = divmod(size, chunk)
    return [cut for cut in ((0, whole, chunk), (whole * chunk, 1, rest)) if cut[1] * cut[2]]


def wave(size, frequency):
    scale = math.sqrt((1 if frequency == 0 else 2) / size)
    return scale * np.cos(math.pi / size * frequency * (np.arange(size) + 0.5))


def parse(payload, config, shape):
    n, m = math.prod(shape), shape[0] if len(shape) > 1 else 1
    out = np.zeros((m, n // m))
    tiles = [
        (top + i * a, left + j * b, a, b)
        for top, down, a in cuts(m, config["chunk"])
        for left, across, b in cuts(n // m, config["chunk"])
        for i in range(down)
        for j in range(across)
    ]
    counts = [max(1, math.ceil(round(config["ratio"] * a * b, 6))) for _, _, a, b in tiles]
    values = np.frombuffer(payload[: 4 * sum(counts)], "<f4")
    places = np.frombuffer(payload[4 * sum(counts) :], "<u2")
    entry = 0
    for (top, left, a, b), count in zip(tiles, counts, strict=True):
        for _ in range(count):
            down, across = divmod(int(places[entry]), b)
            out[top : top + a, left : left + b] += values[entry] * np.outer(wave(a, down), wave(b, across))
            entry += 1
    return out
