import math

import numpy as np

from tests.wire.parsers.thc import hadamard, philox

VALUES = {
    1: [0.797884561],
    2: [0.452780035, 1.510417608],
    3: [0.245094179, 0.756005281, 1.343909279, 2.151945705],
    4: [0.12839503, 0.388048299, 0.656759119, 0.942340456, 1.256231197, 1.618046386, 2.069017227, 2.732589571],
}


FORMS = {
    16: ["", "03 12", "02 03 13", "01 02 12 13", "01 02 03 23", "01 12 23", "01 03 13 23", "02 12 13 23"],
    32: ["", "03 12", "02 03 13", "02 12 13"],
    64: ["", "05 14 23"],
}


def word(code, group):
    form, place = FORMS[group][code % 128 // group].split(), code % group
    odd = [
        sum(i >> int(a) & i >> int(b) & 1 for a, b in form) + (i & place).bit_count() + (code >> 7)
        for i in range(group)
    ]
    return [1 - 2 * (number & 1) for number in odd]


def sizes_of(n, block):
    sizes, rest = [block] * (n // block), n % block
    while rest > 0:
        padded = max(64, 1 << (rest - 1).bit_length())
        sizes.append(padded if padded - rest <= 128 else padded // 2)
        rest -= sizes[-1]
    return sizes


def signs(seed, which, m):
    words = [word for c in range(-(-m // 128)) for word in philox(c, which, seed)]
    return np.array([-1 if words[i >> 5] >> (i & 31) & 1 else 1 for i in range(m)], np.float32)


def parse(payload, config, shape):
    n, block, bits = math.prod(shape), config["block"], config["bits"]
    if n == 0:
        return np.zeros(0, np.float32)
    sizes = sizes_of(n, block)
    group = 1 if bits >= 1 else int(8 / bits)
    step = max(16, group)
    sent = max(1, math.ceil(round(config["fraction"] * block / step, 6))) * step
    if group == 1:
        values = np.array([[sign * value] for sign in (1, -1) for value in VALUES[bits]], np.float32)
    else:
        bits, values = 8, np.array([word(code, group) for code in range(256)], np.float32)
    seed = int.from_bytes(payload[:4], "little")
    scales = np.frombuffer(payload[4 : 4 + 4 * len(sizes)], "<f4")
    stream = int.from_bytes(payload[4 + 4 * len(sizes) :], "little")
    m, at, out = sum(sizes), 0, []
    first, second = signs(seed, 0, m), signs(seed, 1, m)
    for scale, size in zip(scales, sizes, strict=True):
        kept = -(-size * sent // (step * block)) * step
        codes = [stream >> i * bits & (1 << bits) - 1 for i in range(kept // group)]
        stream >>= kept // group * bits
        y = np.zeros(size, np.float32)
        y[:kept] = values[codes].reshape(-1) * (scale * np.float32(1 / size))
        if group > 1:
            y *= first[at : at + size]
        out.append(hadamard(hadamard(y) * second[at : at + size]) * first[at : at + size])
        at += size
    return np.concatenate(out)[:n]
