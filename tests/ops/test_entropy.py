"""The entropy coders: kernels against references, what comes back, and what bytes from a peer may do."""

import pytest
import torch

from gradwire.contrib.compressors.wrappers._coders import elias, frequencies, huffman
from gradwire.contrib.compressors.wrappers.ops import (
    CHUNK,
    byte_counts,
    chunk_count,
    prefix_decode,
    prefix_encode,
    rans_decode,
    rans_encode,
)
from tests.cases import together
from tests.ops.harness import TARGETS, Case, check_against_reference, dispatched, random_bytes, sweep, torch_threads

SIZES = (1, 2, 7, 8, 9, 1000, CHUNK, 2 * CHUNK + 3)
CODERS = {
    "rans": (rans_encode, rans_decode, frequencies),
    "huffman": (prefix_encode, prefix_decode, huffman),
    "elias": (prefix_encode, prefix_decode, elias),
}


def skewed(n, seed=0):
    return (torch.randn(n, generator=torch.Generator().manual_seed(seed)).abs() * 3).to(torch.uint8)


def table_for(symbols, make):
    return torch.tensor(make(torch.bincount(symbols, minlength=256).tolist()), dtype=torch.int32)


def encoded(encode, symbols, table, room=None):
    sizes = torch.full((chunk_count(symbols.numel()),), 7, dtype=torch.int32)
    out = torch.full((3 * symbols.numel() + 64 if room is None else room,), 0xA5, dtype=torch.uint8)
    encode(symbols, table, sizes, out)
    return sizes, out[: int(sizes.sum())] if sizes[0] >= 0 else None


def decoded(decode, stream, sizes, table, n):
    symbols, status = torch.full((n,), 9, dtype=torch.uint8), torch.zeros(1, dtype=torch.int32)
    decode(stream, sizes, table, symbols, status)
    return symbols, status.item()


@sweep
def test_byte_counts(n, threads, offset):
    for symbols in (random_bytes((n,), 3), torch.full((n,), 255, dtype=torch.uint8)):
        case = Case(byte_counts, {"symbols": symbols}, {"counts": ((256,), torch.int64)})
        check_against_reference(case, threads, offset)


@together
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("coder", CODERS)
def test_kernel_and_reference_write_the_same_and_read_it_back(coder, n):
    encode, decode, make = CODERS[coder]
    symbols = skewed(n)
    table = table_for(symbols, make)
    expected_sizes, expected = encoded(encode.reference, symbols, table)
    for threads in (1, 2):
        with torch_threads(threads):
            sizes, stream = encoded(encode, symbols, table)
            assert torch.equal(sizes, expected_sizes)
            assert torch.equal(stream, expected)
            back, status = decoded(decode, stream, sizes, table, n)
            assert torch.equal(back, symbols)
            assert status == 0
    back, status = decoded(decode.reference, expected, expected_sizes, table, n)
    assert torch.equal(back, symbols)
    assert status == 0


@together
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("chunks", [2, 7])
def test_every_target_reads_chunks_together(target, chunks):
    symbols = skewed(chunks * CHUNK - 5)
    table = table_for(symbols, frequencies)
    sizes, stream = encoded(rans_encode, symbols, table)
    wrong = stream.clone()
    wrong[int(sizes[0]) + 5000] ^= 1
    with dispatched(target):
        assert torch.equal(decoded(rans_decode, stream, sizes, table, symbols.numel())[0], symbols)
        found, status = decoded(rans_decode, wrong, sizes, table, symbols.numel())
    with dispatched("scalar"):
        expected, _ = decoded(rans_decode, wrong, sizes, table, symbols.numel())
    assert torch.equal(found, expected)
    assert status == 1
    assert torch.equal(found[:CHUNK], symbols[:CHUNK])


@together
@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("kind", ["one symbol", "all symbols", "two symbols"])
def test_unusual_alphabets(coder, kind):
    encode, decode, make = CODERS[coder]
    symbols = {
        "one symbol": torch.full((5000,), 255, dtype=torch.uint8),
        "all symbols": torch.arange(5120).remainder(256).to(torch.uint8),
        "two symbols": (torch.arange(5000) == 77).to(torch.uint8),
    }[kind]
    table = table_for(symbols, make)
    sizes, stream = encoded(encode, symbols, table)
    assert torch.equal(stream, encoded(encode.reference, symbols, table)[1])
    assert torch.equal(decoded(decode, stream, sizes, table, symbols.numel())[0], symbols)


@together
@pytest.mark.parametrize("coder", CODERS)
def test_bytes_from_a_peer_give_the_same_whatever_they_are(coder):
    encode, decode, make = CODERS[coder]
    generator, symbols = torch.Generator().manual_seed(1), skewed(2000)
    table = table_for(symbols, make)
    sizes, stream = encoded(encode, symbols, table)
    noticed = 0
    for trial in range(60):
        bad, bad_sizes, bad_table = stream.clone(), sizes.clone(), table.clone()
        if trial % 3 == 0:
            bad_sizes += int(torch.randint(-2000, 2000, (1,), generator=generator))
        if trial % 3 == 1:
            bad_table[torch.randint(0, 256, (2,), generator=generator)] += trial - 30
        bad[torch.randint(0, bad.numel(), (2,), generator=generator)] = trial
        bad = bad[: bad.numel() - trial % 5]
        fast = decoded(decode, bad, bad_sizes, bad_table, symbols.numel())
        slow = decoded(decode.reference, bad, bad_sizes, bad_table, symbols.numel())
        assert torch.equal(fast[0], slow[0])
        assert fast[1] == slow[1]
        noticed += fast[1]
    assert noticed > 50


@together
@pytest.mark.parametrize("coder", CODERS)
def test_too_little_room_and_useless_tables_are_told(coder):
    encode, _, make = CODERS[coder]
    symbols = skewed(CHUNK + 1)
    table = table_for(symbols, make)
    needed = int(encoded(encode, symbols, table)[0].sum())
    useless = torch.full((256,), 17 if coder == "rans" else 1, dtype=torch.int32)
    for function in (encode, encode.reference):
        assert encoded(function, symbols, table, needed)[0].sum() == needed
        assert encoded(function, symbols, table, needed - 1)[0].tolist() == [-1] * 2
        assert encoded(function, symbols, useless)[0].tolist() == [-1] * 2


@together
@pytest.mark.parametrize("coder", CODERS)
def test_no_bytes_and_no_room_are_told_too(coder):
    encode, decode, make = CODERS[coder]
    symbols = skewed(100)
    table, nothing, none = (
        table_for(symbols, make),
        torch.empty(0, dtype=torch.uint8),
        torch.zeros(1, dtype=torch.int32),
    )
    assert encoded(encode, symbols, table, 0)[0].tolist() == [-1]
    found, status = decoded(decode, nothing, none, table, 100)
    assert torch.equal(found, decoded(decode.reference, nothing, none, table, 100)[0])
    assert status == 1


def test_rans_by_hand():
    # One symbol of frequency 1024 that starts at 3072: x = 4096 * (65536 / 1024) + 0 + 3072.
    table = torch.zeros(256, dtype=torch.int32)
    table[3], table[5] = 3072, 1024
    _, stream = encoded(rans_encode, torch.tensor([5], dtype=torch.uint8), table)
    assert stream.view(torch.int32).tolist() == [4096 * 64 + 3072] + [65536] * 7


def test_huffman_of_fibonacci_is_cut_to_fifteen_bits():
    counts = [1, 1]
    while len(counts) < 30:
        counts.append(counts[-1] + counts[-2])
    lengths = huffman(counts + [0] * 226)
    assert max(lengths) <= 15
    assert sum(2.0**-length for length in lengths if length) <= 1


def test_elias_gives_the_bits_of_the_gamma_code():
    lengths = elias(list(range(256, 0, -1)))
    assert [lengths[i] for i in (0, 1, 2, 3, 6, 7, 254, 255)] == [1, 3, 3, 5, 5, 7, 15, 17]


def test_frequencies_cost_nearly_nothing_over_the_entropy():
    counts = torch.tensor([10**6, 10**5, 10**4, 10**3, 100, 10, 1] + [0] * 249)
    table = torch.tensor(frequencies(counts.tolist()))
    assert table.sum() == 4096
    assert (table[:7] > 0).all()
    p = counts[:7] / counts.sum()
    entropy, cost = -(p * p.log2()).sum(), -(p * (table[:7] / 4096).log2()).sum()
    assert cost < 1.01 * entropy
