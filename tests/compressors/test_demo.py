"""Tiles, frequencies, signs, and the memory that makes it DeMo."""

import math
import re

import pytest
import torch
import torch.distributed as dist

from gradwire.compressors.demo import DeMo
from gradwire.errors import ConfigError, WireError
from gradwire.exchange import Exchange
from gradwire.memory.residual import Residual
from gradwire.policy import Policy
from gradwire.testing.inputs import gaussian
from gradwire.testing.processes import run_ranks
from tests.cases import together
from tests.compressors.matrices import decoded, matrix, relative_error


def smooth(m: int, length: int) -> torch.Tensor:
    """A few long waves and a little noise."""
    down, across = torch.linspace(0, 3, m).unsqueeze(1), torch.linspace(0, 5, length)
    return torch.sin(down + across) + torch.cos(2 * down - across) + 0.05 * matrix(m, length)


@together
@pytest.mark.parametrize(
    "shape", [(64, 64), (100, 130), (5, 200), (200, 5), (3, 3), (130,), (7, 3, 5), (1, 1)], ids=str
)
def test_all_frequencies_give_the_gradient_back(shape):
    x = gaussian(math.prod(shape)).view(shape)
    torch.testing.assert_close(decoded(DeMo(ratio=1.0), x), x, rtol=1e-5, atol=1e-5)


def test_one_tile_by_the_definition():
    x, code = matrix(4, 4), DeMo(ratio=0.2, chunk=4)
    wave = torch.tensor(
        [
            [(0.5 if f == 0 else math.sqrt(0.5)) * math.cos(math.pi / 4 * f * (i + 0.5)) for i in range(4)]
            for f in range(4)
        ]
    )
    spectrum = wave @ x @ wave.mT
    least = spectrum.abs().view(-1).topk(4).values[-1]
    expected = wave.mT @ torch.where(spectrum.abs() >= least, spectrum, 0.0) @ wave
    torch.testing.assert_close(decoded(code, x), expected, rtol=1e-5, atol=1e-6)


def test_tiles_do_not_mix():
    """Each tile of a matrix decodes to what it decodes to alone, the short ones too."""
    x, code = matrix(40, 25), DeMo(ratio=0.1, chunk=16)
    out = decoded(code, x)
    for top in (0, 16, 32):
        for left in (0, 16):
            rows, columns = slice(top, top + 16), slice(left, left + 16)
            alone = decoded(code, x[rows, columns].contiguous())
            torch.testing.assert_close(out[rows, columns], alone, rtol=1e-5, atol=1e-5)


def test_it_helps_where_the_gradient_is_smooth_and_not_in_noise():
    """methods.md: 0.30 on a smooth matrix, where the largest elements themselves leave 0.92; 0.93 on noise."""
    code = DeMo(ratio=1 / 128)
    assert relative_error(smooth(256, 256), decoded(code, smooth(256, 256))) < 0.3
    assert 0.9 < relative_error(matrix(256, 256), decoded(code, matrix(256, 256))) < 0.97


def test_the_payload_is_six_bytes_for_each_frequency():
    assert DeMo(ratio=32 / 4096).layout((1024, 1024)).nbytes == 256 * 32 * 6
    assert DeMo(ratio=32 / 4096).layout((100,)).nbytes == 2 * 6


def test_places_beyond_32767_survive_16_bits():
    x = torch.zeros(256, 256)
    code = DeMo(ratio=1e-5, chunk=256)
    x.copy_(torch.cos(math.pi / 256 * 255 * (torch.arange(256) + 0.5)).unsqueeze(1))
    torch.testing.assert_close(decoded(code, x), x, rtol=0, atol=1e-4)


def step(rank: int, sign: bool, memory: Residual) -> dict[str, torch.Tensor]:
    exchange = Exchange(DeMo(ratio=0.05, sign=sign), memory=memory, group=dist.group.WORLD, policy=Policy(min_numel=0))
    flat = gaussian(64 * 80, seed=rank)
    for _ in range(2):
        exchange.begin_step()
        flat = gaussian(64 * 80, seed=rank)
        exchange.run(flat, [("a", (64, 80))])
    return {"out": flat, "kept": exchange.keeper.worker["residual"]["a"].clone()}


def test_the_optimizer_gets_the_sign_of_the_mean_and_the_momentum_keeps_the_rest():
    signs = run_ranks(2, step, True, Residual(beta=0.999))
    means = run_ranks(2, step, False, Residual(beta=0.999))
    for rank in range(2):
        assert torch.equal(signs[rank]["out"], means[0]["out"].sign())
        assert torch.equal(signs[rank]["kept"], means[rank]["kept"])
    g, code, momentum = gaussian(64 * 80, seed=1).view(64, 80), DeMo(ratio=0.05), torch.zeros(64, 80)
    for _ in range(2):
        momentum = 0.999 * momentum + g
        momentum = momentum - decoded(code, momentum)
    torch.testing.assert_close(means[1]["kept"].view(64, 80), momentum, rtol=1e-4, atol=1e-4)


def test_it_cannot_be_cut_into_shards():
    with pytest.raises(ConfigError, match="cannot be cut"):
        Exchange(DeMo(), strategy="two_phase")


def test_places_outside_their_tile_are_refused():
    x, code = matrix(10, 10), DeMo(ratio=0.02)
    payload = code.compress(x)
    code.layout(x.shape).views(payload)[1][0] = 100
    with pytest.raises(WireError, match="demo places must stay below 100"):
        code.decompress(payload, x.shape)


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"ratio": 0}, "DeMo.ratio must be in (0, 1], got 0"),
        ({"ratio": 1.1}, "DeMo.ratio must be in (0, 1], got 1.1"),
        ({"chunk": 1}, "DeMo.chunk must be an integer in [2, 256], got 1"),
        ({"chunk": 257}, "DeMo.chunk must be an integer in [2, 256], got 257"),
        ({"sign": 1}, "DeMo.sign must be True or False, got 1"),
    ],
)
def test_bad_parameters(values, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        DeMo(**values)
