import numpy as np


def bits(data):
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")


def rice(low, high, k, shift):
    """The places behind k gaps of ``shift`` low bits each and their quotients in unary."""
    low, ones, places, place, start = bits(low), np.flatnonzero(bits(high))[:k], [], -1, 0
    for i, end in enumerate(ones):
        rest = sum(int(bit) << j for j, bit in enumerate(low[i * shift : (i + 1) * shift]))
        place += ((int(end) - start) << shift) + rest + 1
        start = end + 1
        places.append(place)
    return np.array(places, np.int64)


def shift_of(n, k):
    return max(0, ((n - k) // k).bit_length() - 1)


def split_rice(data, n, k):
    """Places from the two streams end to end, of fixed size."""
    shift = shift_of(n, k)
    middle = -(-k * shift // 8)
    return rice(data[:middle], data[middle:], k, shift)
