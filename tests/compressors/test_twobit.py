"""MXNet's own numbers: its documented codes and the sequences of its nightly test."""

import math
import re

import pytest
import torch

from gradwire.compressors.twobit import TwoBit
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from gradwire.types import Key

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


@pytest.mark.parametrize("bad", [0, 0.0, -0.5, math.nan, math.inf, 1e39, 1e-46, True, "0.5", None])
def test_bad_threshold(bad):
    message = f"TwoBit.threshold must be a finite number > 0 in float32, got {bad!r}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        TwoBit(threshold=bad)
