import numpy as np


def dynamic_map():
    """The page's T: borders multiplied and added in float64, which holds the product, and rounded once."""
    values = np.zeros(256, np.float32)
    values[255] = 1.0
    low, high = np.float32(0.1), np.float32(1.0)
    for d in range(7):
        parts = 2**d
        h = np.float64((high - low) / np.float32(parts))
        b = [np.float32(low + h * i if i < (parts + 1) // 2 else high - h * (parts - i)) for i in range(parts + 1)]
        for j in range(parts):
            values[127 + parts + j] = np.float32(10.0 ** (d - 6)) * ((b[j] + b[j + 1]) / np.float32(2))
            values[127 - parts - j] = -values[127 + parts + j]
    return values


def parse(payload, config, shape):
    scale, codes = np.frombuffer(payload[:4], "<f4"), np.frombuffer(payload[4:], np.uint8)
    return dynamic_map()[codes] * scale
