import importlib
import math

import numpy as np

CHUNK = 32768


def fields_of(config, n):
    """Item size and count of each field, for the inner methods that are tested."""
    if config["name"] == "twobit":
        return [(1, 4 * -(-n // 16))]
    return [(4, -(-n // config["block"])), (1, -(-n * config["bits"] // 8))]


def parse(payload, config, shape):
    inner, n = config["inner"], math.prod(shape)
    used, at, fields = int.from_bytes(payload[:4], "little"), 4, []
    for size, count in fields_of(inner, n):
        if size == 1 and count:
            fields.append(None)
        else:
            at += -at % size
            fields.append(payload[at : at + size * count])
            at += size * count
    counts = [count for size, count in fields_of(inner, n) if size == 1 and count]
    stream = payload[at : at + used]
    for i, field in enumerate(fields):
        if field is None:
            fields[i], stream = section(stream, counts.pop(0))
    assert not stream
    return importlib.import_module(f"tests.wire.parsers.{inner['name']}").parse(b"".join(fields), inner, shape)


def section(stream, count):
    form, chunks = stream[0], -(-count // CHUNK)
    if form == 0:
        return stream[1 : 1 + count], stream[1 + count :]
    present = [s for s in range(256) if stream[1 + s // 8] >> s % 8 & 1]
    width, at, table = 3 - form, 33, [0] * 256
    for s in present:
        table[s] = int.from_bytes(stream[at : at + width], "little")
        at += width
    sizes = np.frombuffer(stream[at : at + 4 * chunks], "<u4")
    at, out = at + 4 * chunks, []
    for i, size in enumerate(sizes):
        symbols = min(CHUNK, count - i * CHUNK)
        out.append((rans if form == 1 else prefix)(stream[at : at + size], table, symbols))
        at += int(size)
    return b"".join(out), stream[at:]


def rans(chunk, table, count):
    states, words = [int(x) for x in np.frombuffer(chunk[:32], "<u4")], iter(np.frombuffer(chunk[32:], "<u2"))
    start = np.concatenate([[0], np.cumsum(table)])
    out = bytearray()
    for i in range(count):
        x = states[i % 8]
        s = int(np.searchsorted(start, x % 4096, side="right")) - 1
        out.append(s)
        x = table[s] * (x // 4096) + x % 4096 - int(start[s])
        states[i % 8] = x if x >= 65536 else x * 65536 + int(next(words))
    return bytes(out)


def prefix(chunk, table, count):
    codes, code = {}, 0
    for length in range(1, 18):
        code *= 2
        for s in range(256):
            if table[s] == length:
                codes[length, code] = s
                code += 1
    bits, out = iter("".join(f"{byte:08b}" for byte in chunk)), bytearray()
    for _ in range(count):
        length = code = 0
        while (length, code) not in codes:
            length, code = length + 1, 2 * code + int(next(bits))
        out.append(codes[length, code])
    return bytes(out)
