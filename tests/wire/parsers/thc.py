import math

import numpy as np

LOW = 0xFFFFFFFF


def philox(counter, step, key):
    x, k = [counter & LOW, counter >> 32, step & LOW, step >> 32], [key & LOW, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [b >> 32 ^ x[1] ^ k[0], b & LOW, a >> 32 ^ x[3] ^ k[1], a & LOW]
        k = [k[0] + 0x9E3779B9 & LOW, k[1] + 0xBB67AE85 & LOW]
    return x


def hadamard(y):
    h = len(y) // 2
    while h:
        a, b = y.reshape(-1, 2, h).transpose(1, 0, 2)
        y = np.stack((a + b, a - b), 1).reshape(-1)
        h //= 2
    return y


def parse(payload, config, shape):
    n, block, levels = math.prod(shape), config["block"], config["levels"]
    if n == 0:
        return np.zeros(0, np.float32)
    blocks, rest = -(-n // block), n % block
    sizes = [block] * (n // block) + ([max(16, 1 << (rest - 1).bit_length())] if rest else [])
    m = sum(sizes)
    key, step = np.frombuffer(payload[:16], "<u8").tolist()
    norms, sums = np.frombuffer(payload[16 : 16 + 4 * blocks], "<f4"), payload[16 + 4 * blocks :]
    world = int.from_bytes(sums[m : m + 4], "little", signed=True)
    t = np.float32(2) / np.float32(levels * world) if 0 < world <= 255 // levels else np.float32(np.nan)
    out, at = np.zeros(m, np.float32), 0
    for norm, size in zip(norms, sizes, strict=True):
        root = np.float32(1) / np.sqrt(np.float32(size))
        s = np.frombuffer(sums[at : at + size], np.uint8).astype(np.float32)
        out[at : at + size] = hadamard((s * t - np.float32(1)) * (norm * (np.float32(config["clip"]) * root))) * root
        at += size
    words = [word for c in range(-(-m // 128)) for word in philox(c, step, key)]
    signs = np.array([-1 if words[i >> 5] >> (i & 31) & 1 else 1 for i in range(n)], np.float32)
    return out[:n] * signs
