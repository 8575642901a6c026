import math
import re
from dataclasses import replace

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.compressors.transforms._eden import quantiser
from gradwire.compressors.transforms._eden import words as all_words
from gradwire.compressors.transforms.eden import EDEN, LEFT
from gradwire.errors import ConfigError
from gradwire.testing.inputs import SPECIAL, gaussian
from gradwire.vocabulary import Key
from tests.cases import together
from tests.compressors.rounding import decoded, relative_error

CPU = torch.device("cpu")


@together
@pytest.mark.parametrize(
    ("code", "n", "nbytes"),
    [
        (EDEN(), 0, 0),
        (EDEN(), 1, 4 + 4 + 8),
        (EDEN(), 4096, 4 + 4 + 512),
        (EDEN(bits=3), 8192, 4 + 8 + 3 * 1024),
        (EDEN(fraction=0.25), 4096, 4 + 4 + 128),
        (EDEN(bits=2, fraction=0.5, block=1024), 1024 + 512 + 60, 4 + 12 + 128 + 64 + 8),
        (EDEN(fraction=1e-6), 4096, 4 + 4 + 2),
        (EDEN(fraction=1e-12), 4096, 4 + 4 + 2),
        (EDEN(bits=0.5), 4096, 4 + 4 + 256),
        (EDEN(bits=0.25), 4096 + 60, 4 + 8 + 128 + 2),
        (EDEN(bits=0.125, fraction=0.3), 4096, 4 + 4 + 20),
    ],
)
def test_a_payload_is_a_seed_a_scale_for_each_block_and_the_codes(code, n, nbytes):
    assert code.layout((n,)).nbytes == nbytes


@together
@pytest.mark.parametrize("n", [1, 100, 130, 1000, 4095, 5000, 12345])
@pytest.mark.parametrize("bits", [1, 4])
def test_padding_wastes_little(n, bits):
    code = EDEN(bits=bits)
    whole = EDEN(bits=bits, block=4096).layout((n // 4096 * 4096,)).nbytes
    assert code.layout((n,)).nbytes <= whole + bits * (n % 4096 + 128) / 8 + 4 * 8


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_centroids_are_those_of_the_normal_distribution(bits):
    values, _ = quantiser(bits, CPU).double().sort()
    edges = (values[1:] + values[:-1]) / 2
    grid = torch.linspace(-9, 9, 2_000_001, dtype=torch.float64)
    weight = torch.exp(-grid * grid / 2) / math.sqrt(2 * math.pi) * float(grid[1] - grid[0])
    nearest = torch.bucketize(grid, edges)
    mass = torch.zeros_like(values).index_add_(0, nearest, weight)
    means = torch.zeros_like(values).index_add_(0, nearest, weight * grid) / mass
    torch.testing.assert_close(values, means, rtol=0.0, atol=1e-5)
    assert float((weight * (grid - values[nearest]) ** 2).sum()) == pytest.approx(LEFT[bits], abs=1e-6)


@together
@pytest.mark.parametrize("bits", [0.125, 0.25, 0.5, 1, 2, 3, 4])
@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "one element"])
def test_the_variance_is_that_of_the_quantiser_whatever_the_gradient(bits, fraction, kind):
    x = {"normal": gaussian(4096), "heavy tails": gaussian(4096) ** 5, "one element": torch.eye(1, 4096)[0]}[kind]
    expected = 1 / (fraction * (1 - LEFT[bits])) - 1
    assert relative_error(EDEN(bits=bits, fraction=fraction), x, 6) == pytest.approx(expected, rel=0.12)


@together
@pytest.mark.parametrize("bits", [0.5, 1, 2])
@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_small_elements_beside_a_large_one_are_right_on_average(bits, fraction):
    """One rotation by a Hadamard matrix would send the sign of the large one alone, in every draw."""
    block = torch.full((256,), 0.02)
    block[7] = 1.0
    x, code = block.repeat(400), EDEN(bits=bits, block=256, fraction=fraction)
    draws = torch.cat([decoded(code, x, Key(step=step)).view(400, 256) for step in range(2)]).double()
    small = torch.cat([draws[:, :7], draws[:, 8:]], 1).mean(1)
    assert float(small.mean()) == pytest.approx(0.02, abs=5 * float(small.std()) / math.sqrt(800))
    assert float(small.std()) / math.sqrt(800) < 0.003


@together
@pytest.mark.parametrize("bits", [0.125, 0.25, 0.5, 1])
@pytest.mark.parametrize("kind", ["two elements", "one large", "heavy tails"])
def test_little_bias_is_left_whatever_the_gradient(bits, kind):
    """The search for a word must not undo a rotation: without signs in between a fifth of a gradient would be lost."""
    size, draws = 256, 8192
    x = {"two elements": torch.zeros(size), "one large": torch.full((size,), 0.02), "heavy tails": gaussian(size) ** 5}[
        kind
    ]
    if kind != "heavy tails":
        x[3] = 1.0
    if kind == "two elements":
        x[40] = 0.3
    found = decoded(EDEN(bits=bits, block=size), x.repeat(draws), Key(step=1)).view(draws, size).double()
    chance = float(found.var(0).sum()) / draws
    off = float((found.mean(0) - x).square().sum()) - chance
    assert off < 0.05**2 * float(x.square().sum())


@together
@pytest.mark.parametrize(("group", "words"), [(16, 256), (32, 256), (64, 256)])
def test_words_are_different_and_far_apart(group, words):
    """In as many places as a code of this length and size can promise: 6 of 16, 12 of 32, 28 of 64."""
    half = all_words(group, CPU)
    code = torch.cat([half, -half])
    products = code @ code.T - 2 * group * torch.eye(words)
    least = {16: 6, 32: 12, 64: 28}[group]
    assert code.shape == (words, group)
    assert code.abs().eq(1).all()
    assert float(products.max()) == group - 2 * least


@pytest.mark.parametrize("bits", [0.5, 0.25, 0.125])
def test_fewer_bits_add_less_than_fewer_coordinates_at_equal_bytes(bits):
    words, signs = EDEN(bits=bits), EDEN(fraction=bits)
    assert words.layout((8192,)) == signs.layout((8192,))
    assert capabilities.omega(words, 8192) < 0.66 * capabilities.omega(signs, 8192)


@pytest.mark.parametrize("bits", [0.125, 0.25, 0.5, 1, 2, 3, 4])
def test_the_product_with_the_gradient_is_exact_in_every_draw(bits):
    x = gaussian(1024) ** 3
    for step in range(3):
        out = decoded(EDEN(bits=bits), x, Key(step=step)).double()
        assert float(out @ x.double() / x.double().square().sum()) == pytest.approx(1.0, abs=1e-5)


def test_noise_of_ranks_is_independent():
    code, x = EDEN(), gaussian(4096)
    outs = torch.stack([decoded(code, x, Key(rank=rank)) for rank in range(16)])
    alone = float((outs - x).square().sum(1).mean())
    assert float((outs.mean(0) - x).square().sum()) == pytest.approx(alone / 16, rel=0.15)


def test_a_residual_stays_bounded_where_one_is_allowed():
    code = EDEN(bits=1)
    residual, payload = torch.zeros(1024), code.layout((1024,)).views(torch.zeros(136, dtype=torch.uint8))
    for step in range(60):
        code.encode_feedback(gaussian(1024, step), residual, payload, {}, Key(step=step))
    assert float(residual.square().mean().sqrt()) < 2.5


@together
@pytest.mark.parametrize(
    ("code", "feedback"),
    [
        (EDEN(), "optional"),
        (EDEN(bits=4), "optional"),
        (EDEN(fraction=0.5), "unsafe"),
        (EDEN(3, 64, 0.5), "unsafe"),
        (EDEN(0.5), "unsafe"),
        (EDEN(0.125, scaled=True), "required"),
    ],
)
def test_feedback_is_safe_where_the_variance_is_below_the_signal(code, feedback):
    assert code.feedback == feedback
    assert capabilities.bounded(code) == repr(replace(code, scaled=True))


@together
@pytest.mark.parametrize("code", [EDEN(), EDEN(0.5), EDEN(0.125), EDEN(2, fraction=0.25)])
def test_scaled_it_is_a_contraction_whose_payload_is_the_same(code):
    scaled, x = replace(code, scaled=True), gaussian(8 * 4096)
    assert not scaled.unbiased
    assert capabilities.delta(scaled, x.numel()) == pytest.approx(1 / (1 + capabilities.omega(code, x.numel())))
    assert torch.equal(scaled.compress(x), code.compress(x))
    left = (decoded(scaled, x) - x).square().sum() / x.square().sum()
    assert float(left) == pytest.approx(1 - capabilities.delta(scaled, x.numel()), rel=0.02)


@together
@pytest.mark.parametrize(
    ("code", "fine"), [(EDEN(1), False), (EDEN(2), True), (EDEN(3), True), (EDEN(2, fraction=0.9), False)]
)
def test_who_is_fine_leaves_little_behind(code, fine):
    assert capabilities.fine(code) is fine


@pytest.mark.parametrize("kind", ["zero", "negative zero", "denormal"])
def test_nothing_decodes_to_nothing(kind):
    assert decoded(EDEN(), SPECIAL[kind](1500)).eq(0).all()


def test_a_nan_stays_in_its_block():
    x = gaussian(3 * 64)
    x[70] = math.nan
    out = decoded(EDEN(block=64), x).view(3, 64)
    assert [bool(row.isnan().all()) for row in out] == [False, True, False]
    assert out[::2].isfinite().all()


@together
@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_units_do_not_matter(factor):
    x, factor = gaussian(1000), 2.0 ** round(math.log2(factor))
    assert torch.equal(decoded(EDEN(bits=2), x * factor), decoded(EDEN(bits=2), x) * factor)


@together
@pytest.mark.parametrize("bad", [0, 5, 2.0, 0.3, True, None, "1"])
def test_bad_bits(bad):
    allowed = "1, 2, 3 or 4, or 0.5, 0.25 or 0.125"
    with pytest.raises(ConfigError, match=re.escape(f"EDEN.bits must be {allowed}, got {bad!r}")):
        EDEN(bits=bad)


@together
@pytest.mark.parametrize("bad", [32, 96, 32768, 1024.0, True, None])
def test_bad_block(bad):
    with pytest.raises(ConfigError, match=re.escape(f"EDEN.block must be a power of two in [64, 16384], got {bad!r}")):
        EDEN(block=bad)


@together
@pytest.mark.parametrize("bad", [0, -0.5, 1.1, math.nan, True, None])
def test_bad_fraction(bad):
    with pytest.raises(ConfigError, match=re.escape(f"EDEN.fraction must be in (0, 1], got {bad!r}")):
        EDEN(fraction=bad)
