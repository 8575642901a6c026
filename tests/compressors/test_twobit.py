"""MXNet's own numbers: its documented codes and the sequences of its nightly test."""

import math
import re

import pytest
import torch

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key
from tests.cases import together

GOLDEN = [0.5, -0.5, 0.49, 1.3, 0.0, -0.2, -0.75, -3.0, 0.6, math.nan, math.inf, -0.49999, 0.5, 0.5, 0.5, 0.5, -1.0]
LEFT = [0.0, 0.0, 0.49, 0.8, 0.0, -0.2, -0.25, -2.5, 0.1, math.nan, math.inf, -0.49999, 0.0, 0.0, 0.0, 0.0, -0.5]


def feed(code: TwoBit, grad: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    codes = torch.empty(code.layout(grad.shape).nbytes, dtype=torch.uint8)
    code.encode_feedback(grad, residual, (codes,), {}, Key())
    return codes


def push(residual: torch.Tensor, value: float, code: TwoBit = TwoBit(threshold=0.5)) -> float:  # noqa: B008
    return code.decompress(feed(code, torch.tensor([value]), residual), (1,)).item()


def test_golden_vector():
    residual = torch.zeros(17)
    codes = feed(TwoBit(threshold=0.5), torch.tensor(GOLDEN), residual)
    assert codes.numpy().tobytes() == bytes.fromhex("e30accff80000000")
    assert torch.allclose(residual, torch.tensor(LEFT), rtol=0, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_threshold_itself_fires(sign):
    residual = torch.zeros(1)
    sent = [push(residual, sign * value) for value in (0.4, 0.1, 0.2, 0.3)]
    assert sent == [0.0, sign * 0.5, 0.0, sign * 0.5]
    assert residual.item() == 0.0


@pytest.mark.parametrize("sign", [1, -1])
def test_what_exceeds_the_threshold_is_kept(sign):
    residual = torch.zeros(1)
    sent = [push(residual, sign * value) for value in (0.4, 0.2, 0.2, 0.2)]
    assert sent == [0.0, sign * 0.5, 0.0, sign * 0.5]
    assert residual.item() == pytest.approx(0.0, abs=1e-7)


def test_a_large_residual_drains_by_one_threshold_a_push():
    residual = torch.zeros(1)
    assert [push(residual, 2.0), *(push(residual, 0.0) for _ in range(5))] == [0.5] * 4 + [0.0] * 2


def test_a_server_sums_the_workers_and_ignores_the_unused_code():
    code = TwoBit(threshold=0.5)
    payloads = torch.tensor([[0b11_10_00_01, 0, 0, 0], [0b11_11_10_01, 0, 0, 0]], dtype=torch.uint8)
    out = torch.ones(4)
    code.add_decoded_many((payloads,), out, 1.0)
    assert out.tolist() == [2.0, 1.0, 0.5, 1.0]


def test_a_shard_is_cut_at_whole_words():
    code, x = TwoBit(threshold=0.1), gaussian(70)
    assert code.alignment == 16
    shards = [code.compress(part) for part in (x[:48], x[48:])]
    assert torch.equal(torch.cat(shards), code.compress(x))


@together
@pytest.mark.parametrize("bad", [0, 0.0, -0.5, math.nan, math.inf, 1e39, 1e-46, True, "0.5", None])
def test_bad_threshold(bad):
    message = f"TwoBit.threshold must be a finite number > 0 in float32, or 'auto', got {bad!r}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        TwoBit(threshold=bad)


def used(code: TwoBit, x: torch.Tensor) -> int:
    return int(code.compress(x)[:4].view(torch.int32))


def entropy(density: float) -> float:
    """Bits of an element: whether it fires, and its sign."""
    if not 0 < density < 1:
        return density
    return density - density * math.log2(density) - (1 - density) * math.log2(1 - density)


@together
@pytest.mark.parametrize("density", [0.0, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.0626, 0.09, 0.2, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("arrangement", ["random", "crowded", "even"])
def test_the_adaptive_wire_is_near_the_entropy_and_never_above_the_dense_one(density, arrangement):
    n = 200_000
    k = round(density * n)
    places = {
        "random": torch.randperm(n, generator=torch.Generator().manual_seed(1))[:k],
        "crowded": torch.arange(k),
        "even": torch.arange(k) * n // max(k, 1),
    }[arrangement]
    x = torch.zeros(n)
    x[places] = torch.where(gaussian(k) > 0, 1.0, -1.0)
    code, dense = TwoBit(0.5, "adaptive"), TwoBit(0.5)
    assert used(code, x) <= 1 + dense.layout((n,)).nbytes
    if density < 0.1:
        assert 8 * used(code, x) <= 1.15 * n * entropy(density) + 24
    assert torch.equal(code.decompress(code.compress(x), (n,)), dense.decompress(dense.compress(x), (n,)))


@pytest.mark.parametrize(("threshold", "form"), [(3.5, 2), (0.9, 1), (1e-9, 0)])
def test_the_first_byte_says_the_form(threshold, form):
    first = int(TwoBit(threshold, "adaptive").compress(gaussian(4000))[4])
    assert first == form or (form == 2 and 2 < first < 20)


@together
@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000])
def test_the_adaptive_wire_changes_neither_what_is_sent_nor_what_is_kept(n):
    kept = []
    for code in (TwoBit(0.8), TwoBit(0.8, "adaptive")):
        residual, out, layout = gaussian(n, seed=1), torch.zeros(n), code.layout((n,))
        payload = layout.views(torch.empty(layout.nbytes, dtype=torch.uint8))
        code.encode_feedback(gaussian(n), residual, payload, {}, Key())
        code.add_decoded(payload, out)
        kept.append((residual, out))
    assert all(torch.equal(a, b) for a, b in zip(*kept, strict=True))


def test_each_shard_takes_its_own_form():
    x = torch.cat([torch.zeros(1600), torch.ones(1600)])
    code = TwoBit(0.5, "adaptive")
    assert [int(code.compress(part)[4]) for part in x.split(1600)] == [2, 0]


def test_bytes_that_say_nothing_are_refused():
    code = TwoBit(1.0, "adaptive")
    buffer = code.compress(gaussian(500))
    for change in ((0, 1), (4, 77)):
        bad = buffer.clone()
        bad[change[0]] += change[1]
        with pytest.raises(WireError, match=r"twobit stream of \d+ bytes is not as written"):
            code.decompress(bad, (500,))


def test_bytes_that_are_not_in_use_mean_nothing():
    code = TwoBit(1.0, "adaptive")
    buffer = code.compress(gaussian(500))
    other = buffer.clone()
    other[4 + int(buffer[:4].view(torch.int32)) :] = 0xA5
    assert not torch.equal(other, buffer)
    assert torch.equal(code.decompress(other, (500,)), code.decompress(buffer, (500,)))


def test_an_unknown_wire():
    with pytest.raises(ConfigError, match=r"TwoBit\.wire must be 'dense' or 'adaptive', got 'auto'"):
        TwoBit(wire="auto")
