"""Chunks, four levels, numbers of combinations, and two ways to add up what the ranks have sent."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.sparse._combinations import number_width, places_of, write_numbers
from gradwire.contrib.compressors.sparse.sparseloco import SparseLoCo
from gradwire.errors import ConfigError, WireError
from gradwire.testing import contract
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import align
from tests.cases import together
from tests.wire.bits import bits, split_rice


def parse(payload: bytes, config: dict[str, Any], shape: Sequence[int]) -> np.ndarray:
    """A payload read as docs/methods/sparse.md describes it."""
    n, chunk, share = math.prod(shape), config["chunk"], config["ratio"]
    sizes = [min(chunk, n - start) for start in range(0, n, chunk)]
    counts = [max(1, math.ceil(round(share * size, 6))) for size in sizes]
    sent = sum(counts)
    levels, codes = np.frombuffer(payload[:16], "<f4"), bits(payload[16 : 16 + -(-sent // 4)])
    data = payload[16 + -(-sent // 4) :]
    places: list[int] = []
    if config["places"] == "rice":
        places = list(split_rice(data, n, sent))
    else:
        for i, (size, count) in enumerate(zip(sizes, counts, strict=True)):
            width = math.ceil((math.comb(size, count) - 1).bit_length() / 8)
            number, data, own = int.from_bytes(data[:width], "little"), data[width:], []
            for rank in range(count, 0, -1):
                own.append(max(place for place in range(size) if math.comb(place, rank) <= number))
                number -= math.comb(own[-1], rank)
            places += [i * chunk + place for place in reversed(own)]
    out = np.zeros(n, np.float32)
    for j, place in enumerate(places):
        out[place] = levels[int(codes[2 * j]) + 2 * int(codes[2 * j + 1])]
    return out


def number_of(places: Sequence[int], n: int) -> int:
    out = torch.empty(1, number_width(n, len(places)), dtype=torch.uint8)
    write_numbers(torch.tensor([list(places)]), n, out)
    return int.from_bytes(bytes(out[0].tolist()), "little")


def test_the_number_of_a_combination_counts_all_of_them() -> None:
    for n in range(1, 9):
        for k in range(1, n + 1):
            expected = sorted(itertools.combinations(range(n), k), key=lambda each: each[::-1])
            assert [tuple(places_of(number, n, k)) for number in range(math.comb(n, k))] == expected
            assert [number_of(each, n) for each in expected] == list(range(math.comb(n, k)))


def test_large_combinations_come_back_and_any_number_is_one() -> None:
    drawn = random.Random(1)
    for _ in range(100):
        n = drawn.randrange(1, 5000)
        k = drawn.randrange(1, min(n, 100) + 1)
        places = sorted(drawn.sample(range(n), k))
        assert list(places_of(number_of(places, n), n, k)) == places
        assert number_of(places, n) < 256 ** number_width(n, k)
        hostile = places_of(drawn.getrandbits(1500), n, k)
        assert list(hostile) == sorted(set(hostile))
        assert 0 <= hostile[0] <= hostile[-1] < n
    # Beside a binomial a rounded number is on the wrong side of it.
    for number in (math.comb(4000, 64) + by for by in (-1, 0, 1)):
        assert number_of(places_of(number, 4096, 64), 4096) == number


def test_a_place_takes_the_entropy_rounded_up_to_whole_bytes() -> None:
    assert number_width(4096, 64) == 59 == math.ceil(math.log2(math.comb(4096, 64)) / 8)
    layout = SparseLoCo(places="combinations").layout((16, 4096))
    assert [field.nbytes for field in layout.fields] == [16, 16 * 16, 16 * 59]
    assert SparseLoCo(places="rice").layout((16, 4096)).fields[2].nbytes == pytest.approx(16 * 64, rel=0.01)


def definition(x: Tensor, ratio: float, chunk: int) -> Tensor:
    """The method as its authors write it, on one tensor."""
    chosen = torch.zeros_like(x, dtype=torch.bool)
    for start in range(0, x.numel(), chunk):
        part = x[start : start + chunk]
        share = max(1, math.ceil(round(ratio * part.numel(), 6)))
        chosen[start + part.abs().topk(share).indices] = True
    values = x[chosen]
    centred = values - values.mean()
    # Values that are all alike are all in one bin.
    bins = ((centred / (6 / 4 * centred.square().mean().sqrt())).nan_to_num() + 2).round().clamp(0, 3)
    out = torch.zeros_like(x)
    out[chosen] = torch.stack([values[bins == each].mean() for each in bins])
    return out


@together
@pytest.mark.parametrize("places", ["combinations", "rice"])
@pytest.mark.parametrize("n", [5, 4096, 4097, 20_000, 70_000])
def test_it_sends_the_means_of_four_bins_of_the_largest_of_each_chunk(n: int, places: Any) -> None:
    code, x = SparseLoCo(places=places), gaussian(n)
    out = code.decompress(code.compress(x), (n,))
    torch.testing.assert_close(out, definition(x, 1 / 64, 4096))
    assert out.unique().numel() <= 5
    assert ((out - x).square().sum() <= (1 - capabilities.delta(code, n)) * x.square().sum()).item()


def _payloads(code: SparseLoCo, xs: list[Tensor]) -> Any:
    layout = code.layout(xs[0].shape)
    rows = torch.zeros(len(xs), align(layout.nbytes), dtype=torch.uint8)
    for x, row in zip(xs, rows, strict=True):
        row[: layout.nbytes] = code.compress(x)
    return layout.views(rows)


def _sum(code: SparseLoCo, xs: list[Tensor]) -> Tensor:
    out = torch.ones_like(xs[0])
    code.add_decoded_many(_payloads(code, xs), out, 1 / len(xs))
    return out - 1


XS = [torch.tensor([4.0, 0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, 2.0]), torch.tensor([0.0, 40.0, 9.0, 0.0])]


def test_aggregation_divides_by_all_workers_or_by_those_that_sent_a_place() -> None:
    """Two of four elements are sent, each as itself."""
    code = SparseLoCo(ratio=0.5, chunk=4)
    means = _sum(code, XS)
    torch.testing.assert_close(means, torch.tensor([4.0, 40.0, 11.0, 2.0]) / 3)
    senders = _sum(SparseLoCo(ratio=0.5, chunk=4, aggregate="senders"), XS)
    torch.testing.assert_close(senders, torch.tensor([4.0, 40.0, 11.0 / 3, 2.0]))
    codes = code, SparseLoCo(aggregate="senders"), SparseLoCo(clip=True)
    assert [capabilities.average(each) for each in codes] == [
        True,
        False,
        False,
    ]


@together
@pytest.mark.parametrize("aggregate", ["workers", "senders"])
def test_norms_are_clipped_to_their_median(aggregate: Any) -> None:
    norms = [x.norm() for x in XS]
    shortened = [x * min(1.0, float(sorted(norms)[1] / norm)) for x, norm in zip(XS, norms, strict=True)]
    expected = torch.stack(shortened).sum(0)
    senders = torch.stack([x != 0 for x in XS]).sum(0) if aggregate == "senders" else 3
    torch.testing.assert_close(_sum(SparseLoCo(0.5, 4, aggregate, clip=True), XS), expected / senders)


def test_ranks_that_send_nothing_but_zeros_are_no_division_by_zero() -> None:
    zeros = [torch.zeros(4)] * 3
    assert _sum(SparseLoCo(0.5, 4, "senders", clip=True), zeros).tolist() == [0.0] * 4


def test_a_rank_without_a_change_does_not_erase_that_of_the_others() -> None:
    x = torch.tensor([1.0, 0.0, 2.0, 0.0])
    torch.testing.assert_close(_sum(SparseLoCo(0.5, 4, clip=True), [torch.zeros(4), torch.zeros(4), x]), x / 3)
    torch.testing.assert_close(_sum(SparseLoCo(0.5, 4, clip=True), [torch.zeros(4), x]), x / 2)


@together
@pytest.mark.parametrize("code", [SparseLoCo(0.1, 64, clip=True), SparseLoCo(0.1, 64, "senders")], ids=str)
@pytest.mark.parametrize("n", [0, 33, 333])
def test_methods_whose_payloads_depend_on_each_other_keep_the_contract(code: SparseLoCo, n: int) -> None:
    contract.check_all(code, gaussian(n))


@together
@pytest.mark.parametrize(("ratio", "n"), [(0.6, 64), (0.6, 64 + 33), (1.0, 64), (1.0, 33)])
def test_most_of_a_chunk_is_a_combination_too(ratio: float, n: int) -> None:
    x = gaussian(n)
    decoded = [
        code.decompress(code.compress(x), (n,))
        for code in (SparseLoCo(ratio, 64, places="combinations"), SparseLoCo(ratio, 64, places="rice"))
    ]
    assert torch.equal(*decoded)
    assert int((decoded[0] != 0).sum()) >= int(ratio * n)


def test_codes_of_rice_that_end_too_early_are_refused() -> None:
    code = SparseLoCo(places="rice")
    buffer = code.compress(gaussian(10_000))
    buffer[-300:] = 0
    with pytest.raises(WireError, match="sparseloco places of 10000 elements must be 157 below 10000"):
        code.decompress(buffer, (10_000,))


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"ratio": 0.0}, r"SparseLoCo.ratio must be in \(0, 1\], got 0.0"),
        ({"chunk": 70_000}, r"SparseLoCo.chunk must be an integer in \[1, 65536\], got 70000"),
        ({"aggregate": "mean"}, "SparseLoCo.aggregate must be 'workers' or 'senders', got 'mean'"),
        ({"clip": 1}, "SparseLoCo.clip must be True or False, got 1"),
        ({"ratio": 0.1, "places": "combinations"}, "SparseLoCo.places must be 'rice', or 'combinations' where ratio"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SparseLoCo(**parameters)
