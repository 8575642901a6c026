import pytest
import torch

from gradwire.compressors.sparse.ops import exponent_add_decoded, exponent_encode
from tests.cases import pairwise
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.test_exponents import LEAST
from tests.ops.triton.checks import check
from tests.ops.triton.test_marks import marked, sizes


def encoding(x, least, top):
    inputs = marked(x, least, least)
    size = -(-int(inputs["counts"].sum()) // 2)
    return Case(exponent_encode, inputs, {"codes": ((size,), torch.uint8)}, {"top": top})


def stream(n, least, seed):
    case = encoding(gradient(n, seed).clamp_(-3.9, 3.9), least, 129)
    codes = torch.empty(case.outputs["codes"][0], dtype=torch.uint8)
    exponent_encode.reference(**case.inputs, codes=codes, top=129)
    return torch.cat([case.inputs["bitmap"], codes])


@sizes
@pytest.mark.parametrize("least", LEAST.values(), ids=LEAST)
def test_encode(on, n, least):
    check(encoding(gradient(n, 3).clamp_(-3.9, 3.9), least, 129), on, 4 * (n % 3))


def test_what_is_not_finite_has_the_largest_exponent(on):
    check(encoding(gradient(1000, 4, finite=False), float("inf"), 255), on)


@sizes
def test_add_decoded(on, n):
    rows = [stream(n, least, seed) for seed, least in enumerate(LEAST.values())]
    used = torch.tensor([[row.numel()] for row in rows], dtype=torch.int32)
    streams = torch.stack([torch.nn.functional.pad(row, (0, int(used.max()) - row.numel()), value=255) for row in rows])
    inputs = {"streams": streams, "used": used, "tops": torch.tensor([[129], [255], [3]], dtype=torch.int32)}
    for ranks in (0, 1, 3):
        rows = {name: rank[:ranks] for name, rank in inputs.items()}
        check(Case(exponent_add_decoded, rows, {"out": gradient(n, 1)}, {"scale": 0.3}, 8), on, n % 3)


@pairwise
@pytest.mark.parametrize("n", [0, 1, 7, 33, 1000])
def test_bytes_from_a_peer_give_what_the_reference_gives(on, n):
    for seed in range(12):
        used = torch.tensor([[n // 8 + seed * n // 24], [-1], [1 << 30]], dtype=torch.int32)
        tops = torch.tensor([[seed], [-5], [1000]], dtype=torch.int32)
        inputs = {"streams": random_bytes((3, n // 3 + seed), seed), "used": used, "tops": tops}
        check(Case(exponent_add_decoded, inputs, {"out": gradient(n, 1)}, {"scale": 1.0}), on)
