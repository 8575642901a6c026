"""Mistakes of publications and of other implementations, each of which could be repeated here.

First what any method can get wrong, over the whole registry; then what belongs to one method.
"""

from __future__ import annotations

import random
import re

import pytest
import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.dynamic8 import Dynamic8
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.levels.natural import Natural
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.sparse.dgc import DGC
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.terngrad import TernGrad
from gradwire.contrib.compressors.casts.inceptionn import Inceptionn
from gradwire.contrib.compressors.signs.onebit_sgd import OneBitSGD
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.contrib.compressors.sparse.threshold import Threshold
from gradwire.contrib.compressors.ternary.strom import Strom
from gradwire.contrib.compressors.ternary.three_lc import ThreeLC
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.memory.dgc import DGCMemory
from gradwire.testing._expect import decode, encode, same
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key, tensor_id
from tests.cases import together
from tests.contracts.test_boundedness import COMPRESSORS, unit
from tests.house.source import ROOT

EVERY = [pytest.param(each, id=each.name) for each in COMPRESSORS]
VARIABLE = [pytest.param(each, id=each.name) for each in COMPRESSORS if not each.fixed_size]


def alone(compressor: Compressor) -> Exchange:
    return Exchange(compressor, policy=Policy(min_numel=0))


def ran(exchange: Exchange, grad: torch.Tensor) -> torch.Tensor:
    flat = grad.clone().view(-1)
    exchange.begin_step()
    exchange.run(flat, [("a", tuple(grad.shape))])
    return flat.view(grad.shape)


@pytest.mark.parametrize("compressor", EVERY)
def test_no_global_generator_is_touched(compressor: Compressor) -> None:
    """Random-k that reseeds the global generator in each call changes dropout and shuffling."""
    x, before = gaussian(600).view(20, 30), (torch.get_rng_state(), random.getstate())
    payload = encode(compressor, x)[1]
    decode(compressor, payload, x)
    compressor.encode_feedback(x, x.clone(), payload, compressor.init_state(x.shape, Key()), Key())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize("compressor", EVERY)
def test_what_was_not_written_is_not_read(compressor: Compressor) -> None:
    """An all-to-all padded with uninitialised memory puts it into the scale of the last shard."""
    x, residual = gaussian(1003).view(17, 59), gaussian(1003, 1).view(17, 59)

    def work() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        kept = residual.clone()
        buffer, payload = encode(compressor, x)
        compressor.encode_feedback(x.clone(), kept, payload, compressor.init_state(x.shape, Key()), Key())
        return buffer, kept, decode(compressor, payload, x)

    plain = work()
    torch.use_deterministic_algorithms(True, warn_only=True)  # Fresh memory is filled with NaN.
    try:
        filled = work()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(same, plain, filled))


@pytest.mark.parametrize("compressor", EVERY)
def test_the_mean_of_equal_payloads_is_that_payload(compressor: Compressor) -> None:
    """A sum in place of the mean makes the step W times too long."""
    x = gaussian(600).view(20, 30)
    buffer, payload = encode(compressor, x)
    rows, out = torch.zeros(4, -(-buffer.numel() // 8) * 8, dtype=torch.uint8), torch.zeros_like(x)
    rows[:, : buffer.numel()] = buffer
    compressor.add_decoded_many(compressor.layout(x.shape).views(rows[:, : buffer.numel()]), out, 1 / 4)
    torch.testing.assert_close(out, decode(compressor, payload, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compressor", EVERY)
def test_the_first_step_has_the_unit_of_every_other(compressor: Compressor) -> None:
    """Without a residual yet, a first step that skips the learning rate is 1 / lr times too long."""
    x = unit(compressor) * gaussian(600).view(20, 30)
    exchange = alone(compressor)
    sizes = [float(ran(exchange, x).norm()) for _ in range(4)]
    assert sizes[0] <= 2 * max(sizes[1:])


@pytest.mark.parametrize("compressor", EVERY)
@together
@pytest.mark.parametrize("shape", [(1,), (16, 16)])
def test_a_constant_gradient_arrives(compressor: Compressor, shape: tuple[int, ...]) -> None:
    """A deviation of zero must not clip everything away, nor a threshold that nothing exceeds."""
    x = torch.full(shape, 0.5 * unit(compressor))
    if "threshold" in compressor.to_config() and compressor.name == "onebit":
        return  # It sends steps of its own unit, and its residual bounds what is missing.
    exchange, steps = alone(compressor), 120
    total = sum(ran(exchange, x) for _ in range(steps))
    assert float(total.mean()) > 0.15 * steps * float(x.mean())


@pytest.mark.parametrize("compressor", VARIABLE)
def test_zeros_are_not_all_selected(compressor: Compressor) -> None:
    """A threshold of zero with >= sends everything: a gradient of zero, or one of an embedding."""
    rare = torch.zeros(100, 1000)
    rare[3, ::50] = 2 * unit(compressor)
    for x in (torch.zeros(100, 1000), rare):
        assert int(encode(compressor, x)[1][0]) < 0.3 * x.numel()


@pytest.mark.parametrize("compressor", EVERY)
def test_nothing_kept_is_a_view_of_the_gradient(compressor: Compressor) -> None:
    """A momentum that is a view of the gradient changes with the next one."""
    exchange, grad = alone(compressor), unit(compressor) * gaussian(600)
    exchange.begin_step()
    exchange.run(grad, [("a", (20, 30))])
    kept = [
        *(t for of in exchange.residuals.worker.values() for t in of.values()),
        *(t for of in exchange.residuals.states.values() for t in of.values()),
    ]
    before = [tensor.clone() for tensor in kept]
    grad.fill_(float("nan"))
    assert all(map(same, kept, before))


@pytest.mark.parametrize("compressor", EVERY)
def test_decoding_has_no_memory(compressor: Compressor) -> None:
    """A momentum inside the decoder advances twice where memory and strategy both decode."""
    x = gaussian(600).view(20, 30)
    payload = encode(compressor, x)[1]
    assert same(decode(compressor, payload, x), decode(compressor, payload, x))


def test_abstract_methods_raise_what_can_be_caught() -> None:
    """``raise NotImplemented(...)`` is itself a TypeError: NotImplemented is no exception."""
    found = [path for path in (ROOT / "src").rglob("*.py") if re.search(r"raise NotImplemented\b", path.read_text())]
    assert not found
    with pytest.raises(TypeError, match="abstract"):
        Compressor()  # type: ignore[abstract]


def test_anagrams_have_streams_of_their_own() -> None:
    """A sum of a name's bytes is the same for layer1.0 and layer0.1."""
    assert tensor_id("layer1.0.weight") != tensor_id("layer0.1.weight")


def test_indices_depend_on_the_step_and_not_on_how_often_one_was_called() -> None:
    """A counter of calls differs between ranks whose hooks fire in another order."""
    x, code = gaussian(5000), RandomK(ratio=0.01)
    first = encode(code, x, Key(tensor=1, step=3))[0]
    for tensor in range(2, 6):
        encode(code, x, Key(tensor=tensor, step=3))
    assert same(encode(code, x, Key(tensor=1, step=3))[0], first)


def test_random_indices_are_distinct() -> None:
    """Drawn with replacement, a fifth of the coordinates is lost at a ratio of 0.5."""
    sent = RandomK(ratio=0.5).decompress(RandomK(ratio=0.5).compress(torch.ones(1000)), (1000,))
    assert (int(sent.sum()), float(sent.max())) == (500, 1.0)


def test_one_bit_is_not_inverted_as_a_byte() -> None:
    """~mask of a byte is 254 or 255."""
    code, x = OneBitSGD(), torch.tensor([-2.0, -1.0, 1.0, 3.0])
    assert code.decompress(code.compress(x), (4,)).tolist() == [-1.5, -1.5, 2.0, 2.0]


def test_levels_do_not_wrap() -> None:
    """An int8 would become -128 where rounding makes s |x| / |x|_2 a little more than s = 127."""
    for norm in ("l2", "linf"):
        x = torch.zeros(16 * 4000)
        x[::16] = gaussian(4000).abs() ** 3 + 1e-3
        code = QSGD(bits=8, block=16, norm=norm)
        torch.testing.assert_close(code.decompress(code.compress(x), x.shape), x, rtol=1e-6, atol=0.0)


def test_a_norm_of_zero_gives_zeros() -> None:
    """0 / 0 converted to an integer is anything."""
    for code in (QSGD(bits=2, block=16), QSGD(bits=8, block=None, norm="l2"), TernGrad()):
        assert not code.decompress(code.compress(torch.zeros(100)), (100,)).any()


def test_the_upper_level_is_as_likely_as_it_is_near() -> None:
    """The survey prints the probabilities of the two levels the wrong way round."""
    code, x = QSGD(bits=2, block=65536), torch.full((20_000,), 0.2)
    x[0] = 1.0
    assert float(code.decompress(code.compress(x), x.shape)[1:].mean()) == pytest.approx(0.2, abs=0.02)


def test_random_numbers_do_not_repeat() -> None:
    """A generator seeded by time and thread gives every rank, tensor and element of one second the same numbers."""
    code, x = QSGD(bits=2, block=65536), torch.full((1 << 16,), 0.5)
    x[0] = 1.0
    keys = (Key(), Key(rank=1), Key(tensor=1), Key(step=1), Key(seed=1), Key(phase=1))
    draws = [decode(code, encode(code, x, key)[1], x)[1:] for key in keys]
    pairs = [(draws[0], other) for other in draws[1:]] + [(draws[0][gap:], draws[0][:-gap]) for gap in (1, 4, 1024)]
    for a, b in pairs:
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.03


def test_negative_elements_are_sent_too() -> None:
    """P = x / max|x|, as printed, is negative for half of the elements."""
    code, x = TernGrad(clip=0), torch.full((20_000,), -0.5)
    x[0] = 1.0
    assert float(code.decompress(code.compress(x), x.shape)[1:].mean()) == pytest.approx(-0.5, abs=0.02)


def test_the_largest_element_of_an_8_bit_map_is_not_lost() -> None:
    """Values taken for the edges of bins shrink everything by 2 % and lose the largest."""
    code, x = Dynamic8(), gaussian(20_000)
    out = code.decompress(code.compress(x), x.shape)
    assert float(out[x.abs().argmax()] / x[x.abs().argmax()]) > 0.99
    assert float((out * x).sum() / x.square().sum()) == pytest.approx(1.0, abs=1e-3)
    assert float((out - x).norm() / x.norm()) < 0.017


def test_a_bound_of_two_to_the_minus_ten_is_not_of_ten_to_the_minus_ten() -> None:
    """A decimal logarithm in place of a binary one lets elements of 2^-10 come out eight times too large."""
    code, x = Inceptionn(bound=10), torch.logspace(-14, 0, 2000, base=2.0)
    assert float((code.decompress(code.compress(x), x.shape) - x).abs().max()) < 2.0**-10


def test_subnormals_index_no_table() -> None:
    """A table that is entered with a negative exponent decoded -1e-40 to +131072."""
    for code in (Natural(), Natural(rounding="nearest")):
        x = torch.tensor([-1e-40, 1e-40, -1e-45, 1.0, -2.0e5])
        assert bool((code.decompress(code.compress(x), x.shape).abs() <= 2 * x.abs()).all())


def test_the_threshold_is_that_of_the_kth_element() -> None:
    """All from the (k+1)-th on, cut off by index, are the wrong k: of 1 to 5 the numbers 3 and 4."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    for k in range(1, 6):
        for code in (TopK(ratio=k / 5), DGC(ratio=k / 5)):
            assert code.decompress(code.compress(x), (5,)).nonzero().view(-1).tolist() == list(range(5 - k, 5))


def test_a_tensor_without_positive_elements_has_a_threshold() -> None:
    """min(v, max(x)) selects every element where none is positive."""
    code, x = Threshold(v=0.5), -torch.rand(100, generator=torch.Generator().manual_seed(0)) / 4
    assert not code.decompress(code.compress(x), x.shape).any()


def test_a_norm_is_clipped_and_not_each_element() -> None:
    """Clamping elements to a global norm does nothing at all."""
    kept = {name: torch.zeros(4) for name in DGCMemory.buffers}
    grad, status = torch.tensor([3.0, 4.0, 0.0, 0.0]), torch.zeros(1, dtype=torch.int32)
    payload = TopK(ratio=1.0).layout((4,)).views(torch.zeros(TopK(ratio=1.0).layout((4,)).nbytes, dtype=torch.uint8))
    DGCMemory(clip=1.0).encode(TopK(ratio=1.0), grad, kept, payload, {}, Key(), status)
    torch.testing.assert_close(payload[0], torch.tensor([0.6, 0.8, 0.0, 0.0]))


def test_the_velocity_selects_and_not_the_gradient() -> None:
    """The survey prints the gradient; what waited longest would never be sent."""
    kept = {name: torch.zeros(2) for name in DGCMemory.buffers}
    kept["residual"].copy_(torch.tensor([5.0, 0.0]))
    code, status = DGC(ratio=0.5), torch.zeros(1, dtype=torch.int32)
    payload = code.layout((2,)).views(torch.zeros(code.layout((2,)).nbytes, dtype=torch.uint8))
    DGCMemory().encode(code, torch.tensor([0.1, 1.0]), kept, payload, {}, Key(), status)
    assert decode(code, payload, torch.zeros(2)).nonzero().view(-1).tolist() == [0]


def test_the_factor_of_the_step_before_is_where_the_next_begins() -> None:
    """A fresh random factor in every step never finds the subspace."""
    x = gaussian(4000).view(80, 50) + 30 * torch.outer(gaussian(80, 1), gaussian(50, 2)) / 10
    code = PowerSGD(rank=1)
    state, errors = code.init_state(x.shape, Key()), []
    for step in range(4):
        buffer = code.compress(x, state, Key(step=step))
        errors.append(float((code.decompress(buffer, x.shape) - x).norm()))
    assert errors[3] < errors[0]
    assert not torch.equal(state["q"], code.init_state(x.shape, Key())["q"])


def test_a_matrix_of_zeros_does_not_end_the_learning() -> None:
    """Orthogonalised without care, a column of zeros is NaN for ever."""
    code = PowerSGD(rank=2)
    state = code.init_state((8, 8), Key())
    code.compress(torch.zeros(8, 8), state)
    assert float(code.decompress(code.compress(torch.eye(8), state), (8, 8)).norm()) > 1


def test_what_was_sent_leaves_the_residual_of_a_threshold() -> None:
    """The survey leaves out the subtraction, without which an element fires for ever."""
    code, residual = Strom(threshold=1.0), torch.zeros(1)
    payload = code.layout((1,)).views(torch.zeros(code.layout((1,)).nbytes, dtype=torch.uint8))
    code.encode_feedback(torch.tensor([1.5]), residual, payload, {}, Key())
    assert residual.item() == 0.5


def test_the_residual_is_part_of_what_is_rounded() -> None:
    """q = round(x / M) with x = g + m, and the old memory stays in the new one."""
    code = ThreeLC()
    residual, payload = torch.tensor([0.0, 1.5]), encode(code, torch.zeros(2))[1]
    code.encode_feedback(torch.tensor([2.0, 0.0]), residual, payload, {}, Key())
    assert residual.tolist() == [0.0, -0.5]


def test_an_entry_takes_no_64_bit_index() -> None:
    """12 bytes an entry are 6 too many."""
    n, k = 1_000_000, 10_000
    assert TopK().layout((n,)).nbytes <= 6.01 * k
    assert TopK(indices="rice").layout((n,)).nbytes <= 5.2 * k


def test_the_packed_size_is_that_of_the_table() -> None:
    """Bits that travel as bytes, or as elements, are no compression."""
    bits = {
        "onebit": 1,
        "signsgd": 1,
        "signum": 1,
        "efsignsgd": 1,
        "onebit_sgd": 1,
        "twobit": 2,
        "terngrad": 2,
        "qsgd": 4,
        "nuqsgd": 4,
        "natural": 8,
        "lpc_svrg": 8,
        "dynamic8": 8,
        "blockwise8": 8,
        "fp8": 8,
        "bf16": 16,
        "fp16": 16,
        "none": 32,
    }
    for name, wanted in bits.items():
        compressor = registry.build("compressors", name)
        assert wanted <= 8 * compressor.layout((1 << 20,)).nbytes / (1 << 20) <= wanted + 0.07, name


@pytest.mark.parametrize("compressor", VARIABLE)
def test_a_stream_is_no_longer_than_its_length_can_say(compressor: Compressor) -> None:
    """Payloads of 2^29 elements with 4 bytes each have more bits than 31 bits count: bit offsets and sizes wrap
    around."""
    for shape in ((4096, 4096), (2**15, 2**14), (2**15, 2**16), (2**18, 2**16)):
        if compressor.layout(shape).fields[-1].count >= 2**31:
            assert not capabilities.pays_for(compressor, shape)
    assert capabilities.pays_for(compressor, (1024, 1024))


def test_a_shape_survives() -> None:
    """A cast of a list of one tensor has an axis more."""
    assert FP16().decompress(torch.zeros(24, dtype=torch.uint8), (3, 4)).shape == (3, 4)
