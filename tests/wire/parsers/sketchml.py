import math

import numpy as np


def parse(payload, config, shape):
    n, buckets = math.prod(shape), config["buckets"]
    (used,) = np.frombuffer(payload[:4], "<i4")
    positive, *sizes = (int(v) for v in np.frombuffer(payload[4:40], "<i4"))
    means = np.frombuffer(payload[40 : 40 + 4 * buckets], "<f4")
    stream = payload[40 + 4 * buckets :][:used]
    if used == n:
        return means[np.frombuffer(stream, np.uint8)]
    widths = [-(-3 * size // 10) for size in sizes]
    lengths_at = 2 * sum(widths)
    at = lengths_at - sum(sizes) // -4
    out, table_at, done = np.zeros(n, np.float32), 0, 0
    for group, (size, width) in enumerate(zip(sizes, widths, strict=True)):
        count, first = (positive, 1) if group < 4 else (buckets - 1 - positive, 1 + positive)
        first += -(-(group % 4) * count // 4)
        key = 0
        for _ in range(size):
            length = 1 + (stream[lengths_at + done // 4] >> 2 * (done % 4) & 3)
            key += int.from_bytes(stream[at : at + length], "little")
            at, done = at + length, done + 1
            rank = max(
                stream[table_at + row * width + ((key * multiplier % 2**32) * width >> 32)]
                for row, multiplier in enumerate((0x5851F42D, 0x27220A95))
            )
            out[key] = means[first + rank]
        table_at += 2 * width
    return out
