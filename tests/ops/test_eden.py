import pytest
import torch

from gradwire.compressors.transforms._eden import blocks_of, code_bytes, parts
from gradwire.compressors.transforms.ops import eden_add_decoded, eden_encode
from tests.cases import together
from tests.ops.harness import Case, check_against_reference, gradient, random_bytes, sweep

FORMS = (
    (64, 1, 64, 1),
    (64, 4, 16, 1),
    (256, 2, 256, 1),
    (1024, 3, 256, 1),
    (64, 8, 64, 64),
    (256, 8, 64, 32),
    (4096, 1, 4096, 1),
    (16384, 1, 4112, 1),
    (4096, 2, 2048, 1),
    (16384, 8, 16384, 16),
    (4096, 8, 4096, 16),
    (1024, 8, 608, 32),
    (4096, 8, 4096, 64),
)


def forms(n):
    return FORMS if n <= 1000 else FORMS[6:]


def seed(n):
    return torch.tensor([-(2**31) + 5], dtype=torch.int32)[: min(n, 1)]


def decoded(n, special, ranks, block, bits, sent, group):
    """Payloads of several ranks, of which every second block has a special scale."""
    scales = gradient(ranks * blocks_of(n, block), 3).view(ranks, -1)
    scales[:, 1::2] = special
    return {
        "seed": torch.arange(-5, ranks - 5, dtype=torch.int32).view(ranks, 1)[:, : min(n, 1)].contiguous(),
        "scales": scales,
        "codes": random_bytes((ranks, code_bytes(n, block, bits, sent, group)), 2),
    }


@sweep
@pytest.mark.parametrize("size", ["normal", "huge", "tiny", "vanishing"])
def test_encode(n, threads, offset, size):
    for block, bits, sent, group in forms(n):
        for finite in (True, False):
            factor = {"normal": 1.0, "huge": 1e37, "tiny": 1e-30, "vanishing": 1e-38}[size]
            x = gradient(n, 1, finite=finite).clamp(-9, 9) * factor
            written = {
                "scales": ((blocks_of(n, block),), torch.float32),
                "codes": ((code_bytes(n, block, bits, sent, group),), torch.uint8),
            }
            arguments = {"block": block, "bits": bits, "sent": sent, "group": group}
            check_against_reference(Case(eden_encode, {"x": x, "seed": seed(n)}, written, arguments), threads, offset)


@sweep
@pytest.mark.parametrize("special", [1.0, float("inf"), float("nan"), 3e38])
def test_add_decoded(n, threads, offset, special):
    for block, bits, sent, group in forms(n):
        arguments = {"block": block, "bits": bits, "sent": sent, "scale": -1 / 3, "group": group}
        inputs = decoded(n, special, 2, block, bits, sent, group)
        case = Case(eden_add_decoded, inputs, {"out": gradient(n, 6).clamp(-9, 9)}, arguments, pitch=3)
        check_against_reference(case, threads, offset)


@together
@pytest.mark.parametrize("block", [64, 256, 1024, 16384])
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 192, 193, 300, 1023, 1024, 4000, 16383, 16385])
def test_blocks_cover_every_element_once_and_only_the_last_is_padded(block, n):
    found = parts(n, block, block)
    ends = [part.begin + part.rows * part.size for part in found]
    assert [part.begin for part in found] == [0, *ends[:-1]][: len(found)]
    assert n <= (ends[-1] if ends else 0) <= n + 128
    assert all(64 <= part.size <= block and part.size & (part.size - 1) == 0 for part in found)
    assert blocks_of(n, block) == sum(part.rows for part in found)
