"""Exact selection: every target against the reference on what makes selection hard, and decoding of hostile bytes."""

import pytest
import torch

from gradwire.compressors.sparse.ops import parts_add_decoded, sparse_add_decoded, topk_encode, topk_encode_feedback
from gradwire.errors import ConfigError
from tests.cases import pairwise, together
from tests.ops.harness import (
    TARGETS,
    Case,
    Guarded,
    check_against_reference,
    dispatched,
    gradient,
    random_bytes,
    run,
    sweep,
)

SEGMENT = 65536


def made(kind, n):
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=generator)
    if kind == "zeros":
        return torch.zeros(n)
    if kind == "constant":
        return torch.full((n,), -3.0)
    if kind == "ties":
        return torch.randint(-3, 4, (n,), generator=generator).float()
    if kind == "one-hot":
        return torch.zeros(n).index_fill_(0, torch.tensor([n // 2] if n else [], dtype=torch.int64), 1.0)
    if kind == "sorted":
        return torch.arange(n).float()
    if kind == "two scales":
        return torch.cat([x[: n // 2] * 1e-3, x[n // 2 :]])
    if kind == "denormal":
        return x * 1e-42
    if kind == "awkward":
        return gradient(n, 3, finite=False)
    return x**7


KINDS = ("zeros", "constant", "ties", "one-hot", "sorted", "two scales", "denormal", "awkward", "heavy tail")


CHOSEN = {
    "one": lambda n: min(n, 1),
    "a hundredth": lambda n: n // 100,
    "a third": lambda n: n // 3,
    "all": lambda n: n,
}


def outputs(n, k):
    return {
        "values": ((k,), torch.float32),
        "indices": ((k,), torch.int16),
        "counts": ((-(-n // SEGMENT),), torch.int32),
    }


@sweep
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", CHOSEN)
def test_encode(n, threads, offset, kind, share):
    case = Case(topk_encode, {"x": made(kind, n)}, outputs(n, CHOSEN[share](n)))
    check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", CHOSEN)
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(n, threads, offset, kind, share, watched):
    written = {"grad": gradient(n, 2), "residual": made(kind, n), **outputs(n, CHOSEN[share](n))}
    arguments = {} if watched else {"status": None}
    if watched:
        written["status"] = torch.tensor([2], dtype=torch.int32)
    check_against_reference(Case(topk_encode_feedback, {}, written, arguments), threads, offset)


@pairwise
@pytest.mark.parametrize("n", [SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT + 5])
def test_segments(n):
    for k in (1, n // 50, n):
        check_against_reference(Case(topk_encode, {"x": made("heavy tail", n)}, outputs(n, k)), 2, 1)


@together
@pytest.mark.parametrize("target", TARGETS)
def test_ties_go_to_the_lowest_index_and_nan_sorts_above_infinity(target):
    x = torch.tensor([1.0, -2.0, 2.0, float("inf"), float("nan"), 2.0])
    values, indices, counts = torch.empty(4), torch.empty(4, dtype=torch.int16), torch.empty(1, dtype=torch.int32)
    with dispatched(target):
        topk_encode(x, values, indices, counts)
    assert indices.tolist() == [1, 2, 3, 4]
    assert counts.tolist() == [4]


# Where the k-th largest is among equals, or where a sample of the tensor does not show what a part of it holds.
def crowded(kind, n):
    generator = torch.Generator().manual_seed(5)
    x, rare = torch.randn(n, generator=generator), torch.rand(n, generator=generator) < 0.02
    if kind == "two values":
        return rare.float()
    if kind == "mostly zero":
        return x * rare
    if kind == "a burst":
        return torch.cat([x[: n - 2000] * 1e-6, x[n - 2000 :]])
    return torch.sort(x).values


@pairwise
@pytest.mark.parametrize("kind", ["two values", "mostly zero", "a burst", "sorted normal"])
@pytest.mark.parametrize("k", [7, 300, 3000, 9375, 9376, 150_000])  # A 32nd of n divides two ways to search.
@pytest.mark.parametrize("feedback", [True, False])
def test_large_tensors(kind, k, feedback):
    n = 300_001
    if feedback:
        written = {"grad": gradient(n, 2), "residual": crowded(kind, n), **outputs(n, k)}
        check_against_reference(Case(topk_encode_feedback, {}, written, {"status": None}), 2, 1)
    else:
        check_against_reference(Case(topk_encode, {"x": crowded(kind, n)}, outputs(n, k)), 2, 1)


def test_more_values_than_elements_are_refused():
    fields = torch.empty(5), torch.empty(5, dtype=torch.int16), torch.empty(1, dtype=torch.int32)
    message = "topk_encode.values must be at most 4 elements, one for each of x, got 5"
    with pytest.raises(ConfigError, match=message):
        topk_encode(torch.ones(4), *fields)


def payload(x, k):
    values, indices = torch.empty(k), torch.empty(k, dtype=torch.int16)
    counts = torch.empty(-(-x.numel() // SEGMENT), dtype=torch.int32)
    topk_encode(x, values, indices, counts)
    return values, indices, counts


@pairwise
@pytest.mark.parametrize("n", [1, 1000, 100_003, 200_000])
@pytest.mark.parametrize("ranks", [0, 1, 3])
def test_add_decoded(n, ranks):
    parts = [payload(gradient(n, rank), max(1, n // 50)) for rank in range(ranks)]
    fields = (
        [torch.stack(field) for field in zip(*parts, strict=True)]
        if ranks
        else [
            torch.zeros(0, 1),
            torch.zeros(0, 1, dtype=torch.int16),
            torch.zeros(0, -(-n // SEGMENT), dtype=torch.int32),
        ]
    )
    inputs = dict(zip(("values", "indices", "counts"), fields, strict=True))
    case = Case(sparse_add_decoded, inputs, {"out": gradient(n, 9)}, {"scale": 1 / 3}, pitch=4)
    if ranks:
        check_against_reference(case, 2, 1)
    else:
        check_against_reference_without_kernel(case)


def check_against_reference_without_kernel(case):
    out = case.outputs["out"].clone()
    case.op(**case.inputs, out=out, **case.arguments)
    assert torch.equal(out, case.outputs["out"])


@together
@pytest.mark.parametrize("target", TARGETS)
def test_hostile_bytes_write_nothing_outside(target):
    generator = torch.Generator().manual_seed(0)
    for n in (1, 1000, SEGMENT + 7):
        for _ in range(20):
            k, segments = 50, -(-n // SEGMENT)
            values = torch.randn(2, k, generator=generator)
            indices = torch.randint(-32768, 32768, (2, k), generator=generator).to(torch.int16)
            counts = torch.randint(-100, 2**31 - 1, (2, segments), generator=generator).to(torch.int32)
            case = Case(
                sparse_add_decoded,
                {"values": values, "indices": indices, "counts": counts},
                {"out": torch.zeros(n)},
                {"scale": 1.0},
            )
            guarded = Guarded((n,), torch.float32)
            guarded.fill(torch.zeros(n))
            before = guarded.outside()
            with dispatched(target):
                sparse_add_decoded(values, indices, counts, guarded.tensor, 1.0)
            assert torch.equal(guarded.outside(), before)
            expected = torch.zeros(n)
            case.op.reference(values, indices, counts, expected, 1.0)
            torch.testing.assert_close(guarded.tensor, expected, rtol=0, atol=1e-5)


def parts(n, hostile):
    """Entries with values and with levels, of several lengths, in turns."""
    generator = torch.Generator().manual_seed(n)
    for rank, k in enumerate((n // 9, n // 50, 0, n // 3)):
        value, low, counts = payload(gradient(n, rank), k)
        if hostile:
            value = torch.randn(k, generator=generator)
            low = torch.randint(-32768, 32768, (k,), generator=generator).to(torch.int16)
            counts = torch.randint(-100, k + 9, counts.shape, generator=generator).to(torch.int32)
        bits = random_bytes((-(-k // 8),), rank)
        levels = torch.tensor([0.7, -0.3]) if rank % 2 else torch.empty(0)
        yield bits if rank % 2 else value, low, counts, levels


@together
@pytest.mark.parametrize("n", [1, 1000, 100_003, 200_000])
@pytest.mark.parametrize("hostile", [False, True])
def test_parts_add_decoded(n, hostile):
    values, indices, counts, levels = (list(each) for each in zip(*parts(n, hostile), strict=True))
    case = Case(
        parts_add_decoded,
        {},
        {"out": gradient(n, 9)},
        {
            "values": values,
            "indices": indices,
            "counts": counts,
            "levels": levels,
            "scale": 1 / 3,
        },
    )
    if hostile:
        # A place that is named twice in a part is added to in another order by torch.
        expected = run(case, case.op.reference)["out"]
        for target in TARGETS:
            with dispatched(target):
                torch.testing.assert_close(run(case, case.op)["out"], expected, rtol=1e-5, atol=1e-5)
    else:
        check_against_reference(case, 2, 1)


@together
@pytest.mark.parametrize(
    "broken",
    [
        {"levels": [torch.zeros(1)]},
        {"values": [torch.zeros(1, dtype=torch.uint8)]},
        {"values": [torch.zeros(3)]},
        {"counts": [torch.zeros(2, dtype=torch.int32)]},
        {"indices": []},
    ],
)
def test_parts_that_do_not_fit_are_refused(broken):
    good = {
        "values": [torch.ones(2)],
        "indices": [torch.tensor([0, 1], dtype=torch.int16)],
        "counts": [torch.tensor([2], dtype=torch.int32)],
        "levels": [torch.empty(0)],
    }
    parts_add_decoded(**good, out=torch.zeros(4), scale=1.0)
    with pytest.raises(ConfigError, match=r"^parts_add_decoded.* must be "):
        parts_add_decoded(**good | broken, out=torch.zeros(4), scale=1.0)
