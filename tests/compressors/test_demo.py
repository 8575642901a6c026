"""Tiles, frequencies, signs, and the memory that makes it DeMo."""

import math
import re

import pytest
import torch
import torch.distributed as dist

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.transforms.demo import DeMo
from gradwire.contrib.memory.demo import DeMoMemory
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.errors import ConfigError, WireError
from gradwire.kernels import Pieces, Places
from gradwire.memory.residual import Residual
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
    """transforms.md: 0.30 on a smooth matrix, where the largest elements themselves leave 0.92; 0.93 on noise."""
    code = DeMo(ratio=1 / 128)
    assert relative_error(smooth(256, 256), decoded(code, smooth(256, 256))) < 0.3
    assert 0.9 < relative_error(matrix(256, 256), decoded(code, matrix(256, 256))) < 0.97


def pieces_of(shapes: list[tuple[int, ...]], gap: int = 3) -> Pieces:
    sizes = [math.prod(shape) for shape in shapes]
    lows = [sum(sizes[:i]) + gap * (i + 1) for i in range(len(sizes))]
    length = lows[-1] + sizes[-1]
    return Pieces(gaussian(length), Places(length, lows, sizes, shapes))


def payloads_of(code: DeMo, shapes: list[tuple[int, ...]], ranks: int) -> tuple[Pieces, Pieces]:
    """Fields of the payloads as pieces, each of one tensor: one row for each rank."""
    sizes = [code.layout(shape).fields[0].count for shape in shapes]
    places = Places(sum(sizes), [sum(sizes[:i]) for i in range(len(sizes))], sizes)
    dtypes = torch.float32, torch.int16
    return tuple(Pieces(torch.zeros(ranks, sum(sizes), dtype=dtype), places) for dtype in dtypes)


SEVERAL = [(64, 64), (100, 130), (130,), (300, 320), (3, 200), (7, 3, 5), (64, 64), (1, 1)]
"""Tensors with more tiles of one size than are transformed at once, and with short tiles of several sizes."""


@pytest.mark.parametrize("code", [DeMo(ratio=0.05), DeMo(ratio=0.3, chunk=7)], ids=repr)
def test_pieces_are_encoded_and_decoded_together_as_alone(code):
    """An accelerator encodes them together; on the CPU the tiles of each piece are transformed alone."""
    x, ranks = pieces_of(SEVERAL), 2
    before, payloads = x.base.clone(), payloads_of(code, SEVERAL, ranks)
    for rank in range(ranks):
        code.encode_together(x, tuple(field.rows(rank) for field in payloads))
    assert torch.equal(x.base, before)
    out = Pieces(torch.ones_like(x.base), x.places)
    code.add_decoded_many(payloads, out, 0.5)
    for i, (piece, shape, found) in enumerate(zip(x.each(), SEVERAL, out.each(), strict=True)):
        own = tuple(field.each()[i] for field in payloads)
        alone = torch.ones(shape)
        code.add_decoded_many(own, alone, 0.5)
        assert torch.equal(alone.view(-1), found)
        buffer = code.compress(piece.view(shape))
        torch.testing.assert_close(found - 1, code.decompress(buffer, shape).view(-1), rtol=1e-4, atol=1e-5)
        values, places = code.layout(shape).views(buffer)
        torch.testing.assert_close(own[0][1], values, rtol=1e-4, atol=1e-5)
        assert torch.equal(own[1][1], places)
    gaps = torch.ones_like(out.base, dtype=torch.bool)
    for lo, size in zip(x.places.offsets, x.places.sizes, strict=True):
        gaps[lo : lo + size] = False
    assert bool((out.base[gaps] == 1).all())


def test_pieces_with_shapes_that_payloads_do_not_have_are_refused():
    code, x = DeMo(ratio=0.05), pieces_of(SEVERAL)
    payload = tuple(field.rows(0) for field in payloads_of(code, SEVERAL, 1))
    flat = Pieces(x.base, Places(x.places.length, x.places.offsets, x.places.sizes))
    with pytest.raises(AssertionError, match=r"payloads of a tensor of \(4096,\) have 256 values, not 205"):
        code.encode_together(flat, payload)


def test_the_sign_is_that_of_the_pieces_alone():
    x = pieces_of([(3, 4), (5,)])
    x.base[3], x.base[4] = math.nan, 1e-30
    before = x.base.clone()
    capabilities.settle(DeMo(sign=False), x)
    assert torch.equal(x.base[4:], before[4:])
    capabilities.settle(DeMo(), x)
    for piece, was in zip(x.each(), Pieces(before, x.places).each(), strict=True):
        assert torch.equal(piece, was.sign())
    assert torch.equal(x.base[:3], before[:3])
    assert torch.equal(x.base[15:18], before[15:18])


def test_the_payload_is_six_bytes_for_each_frequency():
    assert DeMo(ratio=32 / 4096).layout((1024, 1024)).nbytes == 256 * 32 * 6
    assert DeMo(ratio=32 / 4096).layout((100,)).nbytes == 2 * 6


def test_places_beyond_32767_survive_16_bits():
    x = torch.zeros(256, 256)
    code = DeMo(ratio=1e-5, chunk=256)
    x.copy_(torch.cos(math.pi / 256 * 255 * (torch.arange(256) + 0.5)).unsqueeze(1))
    torch.testing.assert_close(decoded(code, x), x, rtol=0, atol=1e-4)


def step(rank: int, sign: bool) -> dict[str, torch.Tensor]:
    exchange = Exchange(
        DeMo(ratio=0.05, sign=sign), memory=DeMoMemory(beta=0.999), group=dist.group.WORLD, policy=Policy(min_numel=0)
    )
    flat = gaussian(64 * 80, seed=rank)
    for _ in range(2):
        exchange.begin_step()
        flat = gaussian(64 * 80, seed=rank)
        exchange.run(flat, [("a", (64, 80))])
    return {"out": flat, "kept": exchange.residuals.worker["residual"]["a"].clone()}


def test_the_optimizer_gets_the_sign_of_the_mean_and_the_momentum_keeps_the_rest():
    signs, means = run_ranks(2, step, True), run_ranks(2, step, False)
    for rank in range(2):
        assert torch.equal(signs[rank]["out"], means[0]["out"].sign())
        assert torch.equal(signs[rank]["kept"], means[rank]["kept"])
    g, code, momentum = gaussian(64 * 80, seed=1).view(64, 80), DeMo(ratio=0.05), torch.zeros(64, 80)
    for _ in range(2):
        momentum = 0.999 * momentum + g
        momentum = momentum - decoded(code, momentum)
    torch.testing.assert_close(means[1]["kept"].view(64, 80), momentum, rtol=1e-4, atol=1e-4)


WORLD, STEPS, RATE, DECAY = 2, 6, 0.01, 0.1
SHAPES = {"weight": (128, 192), "bias": (128,)}


def gradient_of(name: str, rank: int, at: int) -> torch.Tensor:
    return gaussian(math.prod(SHAPES[name]), seed=100 * at + 10 * rank + len(name)).view(SHAPES[name])


def trained(rank: int) -> dict[str, torch.Tensor]:
    """Plain SGD on gradients that do not depend on the parameters, with nothing said but the method's name."""
    exchange = Exchange(DeMo(), group=dist.group.WORLD, policy=Policy(min_numel=0))
    params = {name: torch.nn.Parameter(gaussian(math.prod(shape)).view(shape)) for name, shape in SHAPES.items()}
    optimizer = torch.optim.SGD(params.values(), lr=RATE, weight_decay=DECAY)
    for at in range(STEPS):
        exchange.begin_step()
        flat = torch.cat([gradient_of(name, rank, at).flatten() for name in SHAPES])
        exchange.run(flat, list(SHAPES.items()))
        for param, grad in zip(params.values(), flat.split([math.prod(s) for s in SHAPES.values()]), strict=True):
            param.grad = grad.view(param.shape).clone()
        optimizer.step()
    assert exchange.methods.memory_for(DeMo()) == DeMoMemory(beta=0.999)
    return {
        **{name: param.detach() for name, param in params.items()},
        **{f"kept {name}": exchange.residuals.worker["residual"][name] for name in SHAPES},
    }


def cosine_transform(size: int) -> torch.Tensor:
    """The orthonormal DCT-II as the textbook writes it: waves down, places across."""
    rows = [[math.cos(math.pi * (2 * i + 1) * f / (2 * size)) for i in range(size)] for f in range(size)]
    waves = torch.tensor(rows, dtype=torch.float64) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves


def strongest(momentum: torch.Tensor, k: int) -> torch.Tensor:
    """The spectrum of chunks of 64 x 64, or of 64, with all but the k largest of each chunk set to zero."""
    tall = cosine_transform(64) if momentum.shape[0] > 1 else torch.ones(1, 1, dtype=torch.float64)
    spectrum = torch.zeros_like(momentum)
    for i in range(0, momentum.shape[0], 64):
        for j in range(0, momentum.shape[1], 64):
            rows, columns = slice(i, i + 64), slice(j, j + 64)
            chunk = (tall @ momentum[rows, columns] @ cosine_transform(64).mT).flatten()
            chosen = chunk.abs().topk(k).indices
            spectrum[rows, columns] = torch.zeros_like(chunk).scatter(0, chosen, chunk[chosen]).view(-1, 64)
    return spectrum


def wave_of(spectrum: torch.Tensor) -> torch.Tensor:
    """The inverse transform of every chunk."""
    tall = cosine_transform(64) if spectrum.shape[0] > 1 else torch.ones(1, 1, dtype=torch.float64)
    out = torch.zeros_like(spectrum)
    for i in range(0, spectrum.shape[0], 64):
        for j in range(0, spectrum.shape[1], 64):
            rows, columns = slice(i, i + 64), slice(j, j + 64)
            out[rows, columns] = tall.mT @ spectrum[rows, columns] @ cosine_transform(64)
    return out


def test_by_its_name_alone_it_is_the_algorithm_of_the_paper():
    """A plain DeMo in float64: beta 0.999, 32 of each chunk of 64 x 64, the learning rate inside the momentum,
    decoupled weight decay, and the sign of what all workers sent."""
    ranks = run_ranks(WORLD, trained)
    for name, shape in SHAPES.items():
        k = 32 if len(shape) == 2 else 1
        theta = gaussian(math.prod(shape)).view(shape).double()
        momenta = [torch.zeros(shape, dtype=torch.float64).view(-1, shape[-1]) for _ in range(WORLD)]
        for at in range(STEPS):
            sent = []
            for rank in range(WORLD):
                momenta[rank] *= 0.999
                momenta[rank] += RATE * gradient_of(name, rank, at).double().view(-1, shape[-1])
                sent.append(strongest(momenta[rank], k))
                momenta[rank] -= wave_of(sent[rank])
            theta *= 1 - RATE * DECAY
            theta -= RATE * wave_of(sum(sent) / WORLD).view(shape).sign()
        for rank in range(WORLD):
            torch.testing.assert_close(ranks[rank][name].double(), theta, rtol=0, atol=1e-6)
            kept = ranks[rank][f"kept {name}"].view(momenta[rank].shape).double()
            torch.testing.assert_close(RATE * kept, momenta[rank], rtol=0, atol=1e-6)


def test_another_memory_makes_another_method_of_it():
    with pytest.raises(ConfigError, match="memory 'residual' makes another method of 'demo'"):
        Exchange(DeMo(), memory="residual")
    assert Exchange(DeMo(sign=False)).methods.memory_for(DeMo(sign=False)) == Residual()


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
