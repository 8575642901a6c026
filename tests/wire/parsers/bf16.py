import numpy as np


def parse(payload, config, shape):
    return (np.frombuffer(payload, "<u2").astype(np.uint32) << 16).view(np.float32)
