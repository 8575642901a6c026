import numpy as np


def parse(payload, config, shape):
    return np.frombuffer(payload, "<f4")
