"""Places as gaps and as a bitmap: the kernels against the reference, and decoding of hostile bytes."""

import pytest
import torch

from gradwire.kernels import bitmap_decode, bitmap_encode, rice_decode, rice_encode
from gradwire.kernels.rice import rice_bytes
from gradwire.kernels.segments import segments, write_places
from tests.cases import together
from tests.ops.harness import Case, check_against_reference, random_bytes

SIZES = (0, 1, 2, 7, 33, 1000, 65536, 200_003)
OPS = {"rice": (rice_encode, rice_decode, "stream"), "bitmap": (bitmap_encode, bitmap_decode, "bitmap")}


def size_of(form, n, k):
    return sum(rice_bytes(n, k)) if form == "rice" else -(-n // 8)


def places(n, k, crowded=False):
    chosen = torch.arange(n - k, n) if crowded else torch.randperm(n, generator=torch.Generator().manual_seed(k))[:k]
    indices, counts = torch.empty(k, dtype=torch.int16), torch.empty(segments(n), dtype=torch.int32)
    write_places(chosen.sort().values, indices, counts)
    return {"indices": indices, "counts": counts}


def room(n, k):
    return {"indices": ((k,), torch.int16), "counts": ((segments(n),), torch.int32)}


@together
@pytest.mark.parametrize("form", OPS)
@pytest.mark.parametrize("n", SIZES)
def test_encode_and_decode(n, form):
    encode, decode, name = OPS[form]
    for k in sorted({0, min(n, 1), n // 1000, n // 60, n // 3, n}):
        for crowded in (False, True):
            at, size = places(n, k, crowded), size_of(form, n, k)
            case = Case(encode, at, {name: ((size,), torch.uint8)}, {"n": n})
            check_against_reference(case, 1, 1)
            stream = torch.empty(size, dtype=torch.uint8)
            encode(**at, **{name: stream}, n=n)
            check_against_reference(Case(decode, {name: stream}, room(n, k), {"n": n}), 1, 1)
            again = {"indices": torch.empty_like(at["indices"]), "counts": torch.empty_like(at["counts"])}
            decode(stream, **again, n=n)
            assert all(torch.equal(at[key], again[key]) for key in at)


@together
@pytest.mark.parametrize("form", OPS)
@pytest.mark.parametrize("n", SIZES)
def test_hostile_bytes_give_what_the_reference_gives(n, form):
    _, decode, name = OPS[form]
    for seed in range(12):
        k = (n * seed) // 11
        noise = random_bytes((size_of(form, n, k),), seed)
        for data in (noise, noise & 1, torch.zeros_like(noise), torch.full_like(noise, 255)):
            check_against_reference(Case(decode, {name: data}, room(n, k), {"n": n}), 1, 0)


@together
@pytest.mark.parametrize("form", OPS)
def test_counts_that_do_not_add_up_write_nothing_outside(form):
    """A mistake of the operator's own caller must not cost memory safety either."""
    encode, _, _name = OPS[form]
    n, k = 100_000, 50
    for counts in ([50, 50], [-5, 50], [2**31 - 1, 7], [0, 0]):
        memory = torch.full((size_of(form, n, k) + 128,), 0xA5, dtype=torch.uint8)
        out = memory[64:-64]
        encode(places(n, k)["indices"], torch.tensor(counts, dtype=torch.int32), out, n)
        assert bool((memory[:64] == 0xA5).all())
        assert bool((memory[-64:] == 0xA5).all())
