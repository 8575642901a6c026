import pytest
import torch

from gradwire.kernels import bitmap_decode, bitmap_encode
from gradwire.kernels.segments import segments, write_places
from tests.cases import pairwise
from tests.ops.harness import Case, random_bytes
from tests.ops.triton.checks import check

SIZES = (0, 1, 2, 7, 33, 1000, 5001, 70_003)


def sizes(test):
    return pairwise(pytest.mark.parametrize("n", SIZES)(test))


def places(n, k, crowded):
    chosen = torch.arange(n - k, n) if crowded else torch.randperm(n, generator=torch.Generator().manual_seed(k))[:k]
    indices, counts = torch.empty(k, dtype=torch.int16), torch.empty(segments(n), dtype=torch.int32)
    write_places(chosen.sort().values, indices, counts)
    return {"indices": indices, "counts": counts}


def bitmap(n):
    return {"bitmap": ((-(-n // 8),), torch.uint8)}


def room(n, k):
    return {"indices": ((k,), torch.int16), "counts": ((segments(n),), torch.int32)}


@sizes
def test_encode(on, n):
    for k in sorted({0, min(n, 1), n // 60, n // 3, n}):
        for crowded in (False, True):
            check(Case(bitmap_encode, places(n, k, crowded), bitmap(n), {"n": n}), on, n % 3)


@sizes
def test_decode_whatever_the_bits_are(on, n):
    for k in sorted({0, n // 60, n // 3, n}):
        noise = random_bytes((-(-n // 8),), k)
        for data in (noise, noise & 1, torch.zeros_like(noise), torch.full_like(noise, 255)):
            check(Case(bitmap_decode, {"bitmap": data}, room(n, k), {"n": n}), on, n % 3)


@pairwise
@pytest.mark.parametrize("counts", [[50, 50], [-5, 50], [2**31 - 1, 7], [0, 0]])
def test_counts_that_do_not_add_up_write_nothing_outside(on, counts):
    n, k = 100_000, 50
    memory = torch.full((-(-n // 8) + 128,), 0xA5, dtype=torch.uint8)
    given = places(n, k, crowded=False) | {"counts": torch.tensor(counts, dtype=torch.int32)}
    on(bitmap_encode)(**given, bitmap=memory[64:-64], n=n)
    assert bool((memory[:64] == 0xA5).all())
    assert bool((memory[-64:] == 0xA5).all())
    assert int(sum(byte.bit_count() for byte in memory[64:-64].tolist())) <= k
