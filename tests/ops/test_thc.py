import pytest
import torch

from gradwire.contrib.compressors.transforms._thc import coordinates
from gradwire.contrib.compressors.transforms.ops import block_norms, thc_add_decoded, thc_encode
from tests.ops.harness import Case, check_against_reference, gradient, sweep

FORMS = ((16, 1, 2.0), (32, 15, 2.154), (128, 85, 3.0), (1024, 15, 2.154), (16384, 255, 4.0))


def forms(n):
    return FORMS if n <= 1000 else FORMS[3:4]


def norms(n, block):
    x = gradient(-(-n // block), 3).abs() + 20.0
    if x.numel() > 2:
        x[:3] = torch.tensor([0.0, float("inf"), float("nan")])
    return x


def seed(n):
    return torch.tensor([-(2**62) + 5, 2**40 + 1])[: 2 * min(n, 1)]


def words(n, block):
    return coordinates(n, block) // 4 + min(n, 1)


@sweep
def test_block_norms(n, threads, offset):
    for block in (16, 1024, 65536):
        for finite in (True, False):
            written = {"norms": ((-(-n // block),), torch.float32)}
            case = Case(block_norms, {"x": gradient(n, 1, finite=finite)}, written, {"block": block})
            check_against_reference(case, threads, offset)


@sweep
def test_encode(n, threads, offset):
    for block, levels, clip in forms(n):
        inputs = {"x": gradient(n, 1).clamp(-9, 9), "norms": norms(n, block), "seed": seed(n)}
        arguments = {"block": block, "levels": levels, "clip": clip, "key": -3, "step": 2**40 + 1}
        case = Case(thc_encode, inputs, {"codes": ((words(n, block),), torch.int32)}, arguments)
        check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("ranks", [0, 1, 3, 300, -1])
def test_add_decoded(n, threads, offset, ranks):
    for block, levels, clip in forms(n):
        codes = torch.randint(-(2**31), 2**31 - 1, (words(n, block),), generator=torch.Generator().manual_seed(1))
        codes[-1:] = ranks
        inputs = {"norms": norms(n, block), "seed": seed(n), "codes": codes.int()}
        arguments = {"block": block, "levels": levels, "clip": clip, "scale": -1 / 3}
        case = Case(thc_add_decoded, inputs, {"out": gradient(n, 6).clamp(-9, 9)}, arguments)
        check_against_reference(case, threads, offset)
