"""Random rounding to levels: every target against the reference, the mean over keys, blocks that are not numbers."""

import pytest
import torch

from gradwire.compressors.levels.ops import qsgd_add_decoded, qsgd_encode, qsgd_encode_feedback
from gradwire.errors import ConfigError
from tests.cases import together
from tests.ops.harness import Case, check_against_reference, gradient, random_bytes, sweep, torch_threads

FORMS = [(bits, block, norm) for bits in range(2, 9) for block, norm in ((16, "linf"), (512, "l2"))] + [
    (4, 512, "linf"),
    (8, 512, "linf"),
    (8, 4096, "linf"),
]


def forms(n):
    """All of them on small tensors, those with SIMD kernels of their own on large ones."""
    return FORMS if n <= 33 else FORMS[-3:]


def outputs(n, bits, block):
    return {"norms": ((-(-n // block),), torch.float32), "codes": ((-(-n * bits // 8),), torch.uint8)}


@sweep
def test_encode(n, threads, offset):
    for bits, block, norm in forms(n):
        arguments = {"bits": bits, "block": block, "norm": norm, "key": -3, "step": 2**40 + 1}
        for finite in (True, False):
            x = gradient(n, 1, finite=finite)
            case = Case(qsgd_encode, {"x": x}, outputs(n, bits, block), arguments)
            check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(n, threads, offset, watched):
    for bits, block, norm in forms(n):
        arguments = {"bits": bits, "block": block, "norm": norm, "key": 9, "step": 4}
        written = {"grad": gradient(n, 2), "residual": gradient(n, 3), **outputs(n, bits, block)}
        if watched:
            written["status"] = torch.tensor([2], dtype=torch.int32)
        else:
            arguments["status"] = None
        check_against_reference(Case(qsgd_encode_feedback, {}, written, arguments), threads, offset)


@sweep
@pytest.mark.parametrize("ranks", [0, 3])
def test_add_decoded(n, threads, offset, ranks):
    for bits, block, _ in forms(n):
        norms = (
            gradient(ranks * -(-n // block), 4).abs().view(ranks, -1)
            if n * ranks
            else torch.zeros(ranks, -(-n // block))
        )
        codes = random_bytes((ranks, -(-n * bits // 8)), 5)
        arguments = {"bits": bits, "block": block, "scale": -1 / 3}
        inputs = {"norms": norms.clamp(max=1e30), "codes": codes}
        case = Case(qsgd_add_decoded, inputs, {"out": gradient(n, 6)}, arguments, pitch=8)
        check_against_reference(case, threads, offset)


@together
@pytest.mark.parametrize("block", [16, 528, 2064, 65536])
def test_the_largest_element_may_be_the_last_of_its_block(block):
    x = gradient(5000, 1).clamp(-1, 1)
    x[block - 1 :: block] = 3.0
    x[-1] = 3.0
    arguments = {"bits": 4, "block": block, "norm": "linf", "key": 1, "step": 2}
    check_against_reference(Case(qsgd_encode, {"x": x}, outputs(5000, 4, block), arguments), 1, 1)


def decoded(x, bits, block, norm, key):
    norms, codes = torch.empty(-(-x.numel() // block)), torch.empty(-(-x.numel() * bits // 8), dtype=torch.uint8)
    qsgd_encode(x, norms, codes, bits, block, norm, key, 0)
    out = torch.zeros_like(x)
    qsgd_add_decoded(norms[None], codes[None], out, bits, block, 1.0)
    return out


def draws_of(x, bits, norm, keys=250, blocks=16):
    """The decoded values of one block, for several keys and for as many copies of it as blocks."""
    copies = x.repeat(blocks)
    return torch.cat([decoded(copies, bits, x.numel(), norm, key).view(blocks, -1) for key in range(keys)])


@together
@pytest.mark.parametrize(("bits", "norm"), [(2, "linf"), (4, "linf"), (8, "linf"), (2, "l2"), (4, "l2"), (8, "l2")])
def test_the_mean_over_keys_and_blocks_is_the_input(bits, norm):
    x = torch.randn(256, generator=torch.Generator().manual_seed(1))
    samples = draws_of(x, bits, norm)
    mean, draws = samples.mean(0), len(samples)
    step = (x.abs().max() if norm == "linf" else x.norm()) / (2 ** (bits - 1) - 1)
    p = (x.abs() / step).frac()
    deviation = step * (p * (1 - p) / draws).sqrt()
    # Far from the middle the count of the rarer level is nearly Poisson: a few single draws more than its deviation.
    assert ((mean - x).abs() <= 4.5 * deviation + 6 * step / draws).all()


def test_the_variance_is_that_of_the_two_nearest_levels():
    x = torch.randn(256, generator=torch.Generator().manual_seed(2))
    samples = draws_of(x, 4, "linf")
    step = x.abs().max() / 7
    p = (x.abs() / step).frac()
    expected = (step**2 * p * (1 - p)).sum()
    assert samples.var(0).sum() == pytest.approx(float(expected), rel=0.05)


@together
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_block_that_is_not_finite_decodes_to_nan_and_its_neighbours_do_not(value):
    x = torch.ones(64)
    x[20] = value
    out = decoded(x, 4, 16, "linf", 0)
    assert out[16:32].isnan().all()
    assert out[:16].eq(1.0).all()
    assert out[32:].eq(1.0).all()


def test_a_vanishing_block_is_zero():
    assert decoded(torch.full((16,), 1e-40), 8, 16, "linf", 0).eq(0).all()


def test_decoded_and_residual_are_the_input():
    n, block = 1000, 64
    grad, residual = gradient(n, 8).clamp(-2, 2), torch.zeros(n)
    norms, codes = torch.empty(-(-n // block)), torch.empty(n, dtype=torch.uint8)
    qsgd_encode_feedback(grad, residual, norms, codes, 8, block, "linf", 1, 2)
    qsgd_add_decoded(norms[None], codes[None], residual, 8, block, 1.0)
    torch.testing.assert_close(residual, grad, rtol=0, atol=1e-6)


def test_the_step_can_be_undone_where_the_length_overflows():
    grad, residual, status = torch.full((32,), 3e38), torch.ones(32), torch.zeros(1, dtype=torch.int32)
    norms, codes = torch.empty(2), torch.empty(16, dtype=torch.uint8)
    qsgd_encode_feedback(grad, residual, norms, codes, 4, 16, "l2", 1, 2, status)
    assert norms.isinf().all()
    assert status.item() == 1
    assert grad.eq(1.0).all()


@together
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bits": 1}, "bits must be an integer from 2 to 8, got 1"),
        ({"bits": 9}, "bits must be an integer from 2 to 8, got 9"),
        ({"block": 24}, "block must be a multiple of 16 from 16 to 65536, got 24"),
        ({"block": 131072}, "block must be a multiple of 16 from 16 to 65536, got 131072"),
        ({"norm": "l1"}, "norm must be 'linf' or 'l2', got 'l1'"),
    ],
)
def test_a_wrong_parameter_is_named(changed, message):
    valid = {"bits": 8, "block": 16, "norm": "linf", "key": 1, "step": 0}
    with pytest.raises(ConfigError, match=f"^qsgd_encode.{message}$"):
        qsgd_encode(torch.ones(16), torch.empty(1), torch.empty(16, dtype=torch.uint8), **valid | changed)


def test_ranks_of_norms_and_codes_must_agree():
    refused = r"^qsgd_add_decoded.codes must be a torch.uint8 tensor of shape \(3, 16\) .*, got torch.uint8 \(2, 16\)"
    with pytest.raises(ConfigError, match=refused):
        qsgd_add_decoded(torch.ones(3, 1), torch.zeros(2, 16, dtype=torch.uint8), torch.zeros(16), 8, 16, 1.0)


def test_threads_do_not_change_the_draw():
    x = gradient(200_000, 7)
    results = []
    for threads in (1, 2):
        with torch_threads(threads):
            results.append(decoded(x, 8, 512, "linf", 3))
    assert torch.equal(*results)
