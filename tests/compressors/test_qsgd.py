import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import SPECIAL, gaussian
from gradwire.testing.strategies import gradients
from gradwire.vocabulary import Key
from gradwire_lab.bench.operations import OperationCount
from tests.cases import together
from tests.compressors.rounding import decoded, memory_after, relative_error


@together
@pytest.mark.parametrize("bits", range(2, 9))
def test_a_payload_is_one_norm_a_block_and_its_bits(bits):
    assert QSGD(bits=bits, block=64).layout((10, 13)).nbytes == 3 * 4 + math.ceil(130 * bits / 8)


@together
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("norm", ["linf", "l2"])
@given(x=gradients(min_size=1))
def test_no_element_is_off_by_more_than_one_level(bits, norm, x):
    code = QSGD(bits=bits, block=16, norm=norm)
    blocks = torch.nn.functional.pad(x, (0, -len(x) % 16)).view(-1, 16).double()
    norms = blocks.abs().amax(1) if norm == "linf" else blocks.square().sum(1).sqrt()
    error = (decoded(code, x, Key()) - x).abs().double()
    step = (norms / code.top).repeat_interleave(16)[: len(x)]
    overflow = step * code.top > 1e19 if norm == "l2" else torch.zeros(len(x), dtype=torch.bool)
    # Squares below 2^-149 are zero in float32, and a norm of 16 of them may be so much too small.
    lost = 2.0**-120 if norm == "linf" else 2.0**-72
    assert bool(((error <= step * (1 + 1e-5) + lost) | overflow).all())


@given(x=gradients(min_size=1, max_size=16))
def test_the_largest_element_of_a_block_is_exact_in_linf(x):
    out, largest = decoded(QSGD(bits=5, block=16), x, Key()), x.abs().argmax()
    assert float(out[largest]) == pytest.approx(float(x[largest]), rel=1e-6, abs=2.0**-120)


@together
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_linf_bound_is_attained(bits):
    code = QSGD(bits=bits, block=512)
    omega = capabilities.omega(code, 512)
    x = torch.full((512,), 1 / (2 * code.top * (1 + omega)))
    x[0] = 1.0
    assert relative_error(code, x, 400) == pytest.approx(omega, rel=0.03)


@given(
    st.sampled_from([1, 3, 7]),
    st.lists(st.floats(0, 1), min_size=1, max_size=200),
)
def test_the_linf_bound_holds_for_the_exact_variance(s, rest):
    a = s * torch.tensor([1.0, *rest], dtype=torch.float64)
    p = a - a.floor()
    variance, size = float((p * (1 - p)).sum()), float(a.square().sum())
    bits = {1: 2, 3: 3, 7: 4}[s]
    assert variance <= capabilities.omega(QSGD(bits=bits), len(a)) * size * (1 + 1e-12)


def test_measured_variance_on_normal_gradients():
    x = gaussian(8192)
    assert relative_error(QSGD(bits=4, norm="l2"), x, 20) == pytest.approx(1.58, rel=0.05)
    assert relative_error(QSGD(bits=4, norm="linf"), x, 20) == pytest.approx(0.036, rel=0.1)
    assert relative_error(QSGD(bits=8, norm="linf"), x, 20) == pytest.approx(1.1e-4, rel=0.1)


@together
@pytest.mark.parametrize("options", [{}, {"block": 64}, {"block": None}, {"norm": "l2"}, {"scaled": True}])
@pytest.mark.parametrize("n", [0, 1, 4, 5, 6, 319, 320, 321, 5 * 8192 + 3])
def test_five_to_a_byte_say_the_same(options, n):
    x, plain, packed = gaussian(n), QSGD(bits=2, **options), QSGD(bits=2, packing="trits", **options)
    assert packed.layout((n,)).nbytes == plain.layout((n,)).nbytes - -(-n // 4) + -(-n // 5)
    assert torch.equal(decoded(packed, x, Key(step=3)), decoded(plain, x, Key(step=3)))
    if "scaled" in options:
        assert n == 0 or memory_after(packed, 3, n) == memory_after(plain, 3, n)


def test_shards_of_five_to_a_byte_are_those_of_the_whole():
    code, x = QSGD(bits=2, block=64, packing="trits"), gaussian(1000)
    assert code.alignment == 320
    parts = [code.layout((length,)).nbytes for length in (320, 320, 320, 40)]
    assert sum(parts) == code.layout((1000,)).nbytes
    bits = QSGD(bits=2, block=64)
    assert torch.equal(decoded(code, x[:320], Key()), decoded(bits, x[:320], Key()))


def test_the_packing_is_written_down_only_where_it_is_another_one():
    plain, packed = QSGD(bits=2), QSGD(bits=2, packing="trits")
    assert "packing" not in plain.to_config()
    assert packed.to_config()["packing"] == "trits"
    assert [registry.from_config("compressors", code.to_config()) for code in (plain, packed)] == [plain, packed]


def test_a_byte_that_is_not_five_digits_is_refused():
    code, x = QSGD(bits=2, packing="trits"), gaussian(50)
    buffer = code.compress(x)
    buffer[-1] = 243
    with pytest.raises(WireError, match="qsgd codes of five to a byte must be at most 242, got 243"):
        code.decompress(buffer, x.shape)


@together
@pytest.mark.parametrize(
    ("bits", "packing", "allowed"),
    [(2, "base3", "'bits' or 'trits'"), (2, None, "'bits' or 'trits'"), (3, "trits", "'bits' at 3 bits")],
)
def test_bad_packing(bits, packing, allowed):
    with pytest.raises(ConfigError, match=re.escape(f"QSGD.packing must be {allowed}, got {packing!r}")):
        QSGD(bits=bits, packing=packing)


def test_noise_of_different_ranks_is_independent():
    code, x, ranks = QSGD(bits=3, block=64), gaussian(4096), 16
    mean = torch.stack([decoded(code, x, Key(rank=rank)) for rank in range(ranks)]).mean(0)
    alone = float((decoded(code, x, Key()) - x).square().mean())
    assert float((mean - x).square().mean()) == pytest.approx(alone / ranks, rel=0.15)


@together
@pytest.mark.parametrize(
    ("code", "feedback"),
    [
        (QSGD(), "optional"),
        (QSGD(bits=3, block=65536), "optional"),
        (QSGD(bits=2), "unsafe"),
        (QSGD(bits=4, block=4096, norm="l2"), "unsafe"),
        (QSGD(bits=8, block=4096, norm="l2"), "optional"),
        (QSGD(bits=4, block=16, norm="l2"), "optional"),
    ],
    ids=str,
)
def test_where_feedback_is_safe(code, feedback):
    assert code.feedback == feedback


def test_feedback_diverges_exactly_where_it_is_called_unsafe():
    coarse, fine = QSGD(bits=4, block=4096, norm="l2"), QSGD(bits=8, block=4096, norm="l2")
    assert coarse.feedback == "unsafe"
    assert memory_after(coarse, 10, 4096) > 30
    assert memory_after(coarse, 50, 4096) > 1000
    assert fine.feedback == "optional"
    assert memory_after(fine, 50, 4096) == pytest.approx(0.21, rel=0.1)


def test_levels_need_not_fill_the_bits():
    code = QSGD(bits=4, levels=5, block=16)
    assert decoded(code, torch.tensor([5.0, -4.0, 3.0, -2.0, 1.0])).tolist() == [5.0, -4.0, 3.0, -2.0, 1.0]
    assert capabilities.omega(code, 16) == capabilities.omega(QSGD(bits=4, levels=5, block=None), 16)


@together
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("n", [16, 5000, 9000])
def test_one_norm_for_the_whole_tensor(norm, n):
    x = gaussian(n)
    whole = QSGD(bits=8, block=None, norm=norm).compress(x)
    assert whole.numel() == 4 + n
    expected = x.abs().amax() if norm == "linf" else x.double().norm().float()
    assert float(whole[:4].view(torch.float32)) == pytest.approx(float(expected), rel=1e-6)


def test_one_norm_is_that_of_a_block_which_holds_the_tensor():
    x, key = gaussian(3000), Key(step=2)
    whole, block = QSGD(bits=5, block=None), QSGD(bits=5, block=4096)
    assert torch.equal(whole.compress(x, key=key), block.compress(x, key=key))


def test_scaled_decodes_the_same_codes_smaller():
    x, plain, scaled = gaussian(4096), QSGD(bits=2, block=None), QSGD(bits=2, block=None, scaled=True)
    payload = plain.compress(x)
    assert torch.equal(scaled.compress(x), payload)
    small = plain.decompress(payload, x.shape) * (1 / (1 + capabilities.omega(plain, 4096)))
    torch.testing.assert_close(scaled.decompress(payload, x.shape), small, rtol=1e-6, atol=0)


@together
@pytest.mark.parametrize("block", [None, 4096])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_scaled_keeps_the_residual_bounded_where_plain_diverges(norm, block):
    plain, scaled = (QSGD(bits=2, block=block, norm=norm, scaled=scaled) for scaled in (False, True))
    assert (plain.feedback, scaled.feedback) == ("unsafe", "required")
    assert memory_after(plain, 40, 4096) > 2 * memory_after(scaled, 40, 4096)
    assert memory_after(scaled, 300, 4096) < 1.3 * memory_after(scaled, 150, 4096)


@together
@pytest.mark.parametrize(("bits", "bad"), [(4, 8), (2, 2), (8, 0), (4, True), (4, 2.0)])
def test_bad_levels(bits, bad):
    most = 2 ** (bits - 1) - 1
    message = f"QSGD.levels must be an integer in [1, {most}] or None at {bits} bits, got {bad!r}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        QSGD(bits=bits, levels=bad)


def test_bad_scaled():
    with pytest.raises(ConfigError, match=re.escape("QSGD.scaled must be True or False, got 1")):
        QSGD(scaled=1)


@together
@pytest.mark.parametrize("kind", ["spike", "constant", "heavy tail", "alternating", "sorted"])
def test_linf_feedback_stays_below_its_proven_bound(kind):
    code, x = QSGD(bits=3, block=512), SPECIAL[kind](512)
    residual, bound = torch.zeros(512), float(x.abs().amax()) / (code.top - 1)
    payload = code.layout((512,)).views(torch.empty(code.layout((512,)).nbytes, dtype=torch.uint8))
    for step in range(200):
        code.encode_feedback(x.clone(), residual, payload, {}, Key(step=step))
        assert float(residual.abs().amax()) <= bound * (1 + 1e-5)


def test_a_block_too_small_for_its_inverse_is_zero():
    code = QSGD(block=16)
    x = torch.cat([torch.full((16,), 2.0**-121), torch.full((16,), 2.0**-120)])
    assert decoded(code, x, Key()).tolist() == [0.0] * 16 + [2.0**-120] * 16


def test_a_norm_that_overflows_is_reported():
    code, status = QSGD(bits=8, block=16, norm="l2"), torch.zeros(1, dtype=torch.int32)
    grad, residual = torch.full((20,), 2e38), torch.full((20,), 0.5)
    payload = code.layout((20,)).views(torch.empty(code.layout((20,)).nbytes, dtype=torch.uint8))
    code.encode_feedback(grad, residual, payload, {}, Key(), status)
    assert status.item() == 1
    assert grad.tolist() == [0.5] * 20


def test_nan_reaches_everyone_in_its_block_only():
    x = torch.ones(48)
    x[20] = math.nan
    out = decoded(QSGD(block=16), x, Key())
    assert out.isnan().tolist() == [False] * 16 + [True] * 16 + [False] * 16


@together
@pytest.mark.parametrize("bad", [1, 9, 0, -4, 4.0, True, "4", None, math.nan])
def test_bad_bits(bad):
    with pytest.raises(ConfigError, match=re.escape(f"QSGD.bits must be an integer in [2, 8], got {bad!r}")):
        QSGD(bits=bad)


@together
@pytest.mark.parametrize("bad", [0, 8, 24, -16, 131072, 512.0, True, "512"])
def test_bad_block(bad):
    with pytest.raises(
        ConfigError, match=re.escape(f"QSGD.block must be a multiple of 16 in [16, 65536] or None, got {bad!r}")
    ):
        QSGD(block=bad)


@together
@pytest.mark.parametrize("bad", ["l1", "", 2, None, math.inf])
def test_bad_norm(bad):
    with pytest.raises(ConfigError, match=re.escape(f"QSGD.norm must be 'linf' or 'l2', got {bad!r}")):
        QSGD(norm=bad)


@pytest.mark.parametrize("name", ["qsgd", "nuqsgd"])
def test_an_encode_with_feedback_is_one_operation_which_looks_at_the_norms_itself(name):
    code = registry.build("compressors", name)
    grad, residual = torch.empty(5000, device="meta"), torch.empty(5000, device="meta")
    payload = code.layout((5000,)).views(torch.empty(code.layout((5000,)).nbytes, dtype=torch.uint8, device="meta"))
    with OperationCount("meta") as count:
        code.encode_feedback(grad, residual, payload, {}, Key(), torch.empty(1, dtype=torch.int32, device="meta"))
    assert dict(count.names) == {"gradwire::qsgd_encode_feedback": 1}
