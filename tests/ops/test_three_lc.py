import pytest
import torch

from gradwire.contrib.compressors.ternary.ops import three_lc_add_decoded, three_lc_encode, three_lc_encode_feedback
from tests.cases import pairwise, together
from tests.ops.harness import TARGETS, Case, check_against_reference, dispatched, gradient, random_bytes, sweep

FORMS = ((16, 1.0), (4096, 1.0), (80, 1.9), (4096, 1.75))


def outputs(n, block):
    blocks, capacity = -(-n // block), n // block * -(-block // 5) + -(-(n % block) // 5)
    return {
        "used": ((1,), torch.int32),
        "scales": ((blocks,), torch.float32),
        "lengths": ((blocks,), torch.int16),
        "stream": ((capacity,), torch.uint8),
    }


def forms(n):
    return FORMS if n <= 1000 else FORMS[1:2]


@sweep
def test_encode(n, threads, offset):
    for block, sparsity in forms(n):
        for finite in (True, False):
            arguments = {"block": block, "sparsity": sparsity}
            case = Case(three_lc_encode, {"x": gradient(n, 1, finite=finite)}, outputs(n, block), arguments)
            check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(n, threads, offset, watched):
    for block, sparsity in forms(n):
        arguments = {"block": block, "sparsity": sparsity}
        written = {"grad": gradient(n, 2), "residual": gradient(n, 3), **outputs(n, block)}
        if watched:
            written["status"] = torch.tensor([2], dtype=torch.int32)
        else:
            arguments["status"] = None
        check_against_reference(Case(three_lc_encode_feedback, {}, written, arguments), threads, offset)


def encoded(x, block, sparsity=1.0):
    written = [torch.zeros(shape, dtype=dtype) for shape, dtype in outputs(x.numel(), block).values()]
    three_lc_encode(x, *written, block, sparsity)
    return written


@sweep
def test_add_decoded(n, threads, offset):
    for block, sparsity in forms(n):
        rows = [encoded(gradient(n, seed).clamp(-3, 3), block, sparsity) for seed in range(3)]
        names = ("scales", "lengths", "stream")
        inputs = {name: torch.stack([row[i] for row in rows]) for i, name in enumerate(names, 1)}
        arguments = {"block": block, "scale": -1 / 3}
        case = Case(three_lc_add_decoded, inputs, {"out": gradient(n, 6)}, arguments, pitch=8)
        check_against_reference(case, threads, offset)


@pairwise
@pytest.mark.parametrize("ranks", [0, 1, 70])
@pytest.mark.parametrize("n", [1, 33, 1000])
def test_any_bytes_are_safe(n, ranks):
    capacity, blocks = n // 16 * 4 + -(-(n % 16) // 5), -(-n // 16)
    lengths = (random_bytes((ranks, blocks), 2).to(torch.int16) % 6) - 1
    scales = gradient(ranks * blocks, 3, finite=False).view(ranks, blocks)
    inputs = {"scales": scales, "lengths": lengths, "stream": random_bytes((ranks, capacity), 1)}
    arguments = {"block": 16, "scale": 0.5}
    check_against_reference(Case(three_lc_add_decoded, inputs, {"out": gradient(n, 6)}, arguments), 1, 0)


@together
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("groups", "codes"),
    [(1, [121]), (2, [243]), (14, [255]), (15, [255, 121]), (16, [255, 243]), (30, [255, 255, 243])],
)
def test_runs_of_zeros(groups, codes, target):
    x = torch.zeros(5 * groups + 5)
    x[-1] = 1.0
    with dispatched(target):
        used, _, lengths, stream = encoded(x, 4096)
    assert stream[: used.item()].tolist() == [*codes, 122]
    assert lengths.tolist() == [len(codes) + 1]
