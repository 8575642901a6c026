"""Gradients are sent in units of a scale that all ranks make of what arrived."""

from __future__ import annotations

import math
from functools import lru_cache

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import gradwire
from gradwire.compressors.casts.bf16 import BF16
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.transforms.eden import EDEN
from gradwire.compressors.wrappers.compose import compose
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.errors import ConfigError
from gradwire.memory import facts
from gradwire.memory.base import check_memory
from gradwire.memory.preconditioned import Preconditioned
from gradwire.testing.processes import run_ranks
from gradwire.vocabulary import Key
from tests.cases import together

N = 4096
FINE = torch.tensor(False)


def roundtrip(memory: Preconditioned, code: gradwire.Compressor, grad: Tensor, scale: Tensor, key: Key) -> Tensor:
    """The output of a worker that is alone."""
    out, status = grad.clone(), torch.zeros(1, dtype=torch.int32)
    payload = code.layout((N,)).views(torch.zeros(code.layout((N,)).nbytes, dtype=torch.uint8))
    memory.encode(code, out, {"scale": scale}, payload, {}, key, status)
    assert status.item() == 0
    facts.begin(memory, out, {"scale": scale})
    code.add_decoded(payload, out)
    facts.finish(memory, out, {"scale": scale}, FINE)
    return out


def test_the_scale_begins_flat_and_moves_to_the_size_of_each_element() -> None:
    memory, scale = Preconditioned(beta=0.5, floor=0.1), torch.zeros(3)
    first = torch.tensor([1.0, -2.0, 6.0])
    facts.finish(memory, first, {"scale": scale}, FINE)
    assert first.tolist() == [1.0, -2.0, 6.0]
    assert scale.tolist() == [3.0, 3.0, 3.0]
    out = torch.tensor([0.0, 1.0, -2.0])
    facts.finish(memory, out, {"scale": scale}, FINE)
    assert out.tolist() == [0.0, 3.0, -6.0]
    torch.testing.assert_close(scale, torch.tensor([math.sqrt(4.5), math.sqrt(9.0), math.sqrt(4.5 + 18)]))
    for _ in range(40):
        facts.finish(memory, torch.tensor([0.0, 0.0, 1.0]), {"scale": scale}, FINE)
    assert 0.09 < float(scale[0] / scale.square().mean().sqrt()) < 0.11, "the floor"


def test_scales_grow_together_where_all_gradients_have_grown() -> None:
    """One step says how much larger they are, but not how large each element is."""
    memory, scale = Preconditioned(beta=0.75, floor=0.0), torch.tensor([3.0, 4.0])
    facts.finish(memory, torch.tensor([10.0, 0.0]), {"scale": scale}, FINE)
    grown = 30 / 5
    torch.testing.assert_close(scale, torch.tensor([math.sqrt(0.75 * (3 * grown) ** 2 + 225), math.sqrt(0.75) * 24]))


@together
@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_the_unit_of_the_gradients_makes_no_difference(size: float) -> None:
    """A power of two times everything is the same run, also where squares would vanish or overflow."""
    memory, unit = Preconditioned(), 2.0 ** round(math.log2(size))
    scales, generator = (torch.zeros(N), torch.zeros(N)), torch.Generator().manual_seed(0)
    for step in range(4):
        grad = torch.randn(N, generator=generator)
        arrived = [
            roundtrip(memory, EDEN(), times * grad, scale, Key(step=step))
            for times, scale in zip((1.0, unit), scales, strict=True)
        ]
        assert torch.equal(arrived[1], arrived[0] * unit)
        assert torch.equal(scales[1], scales[0] * unit)


def test_nothing_of_a_step_that_is_not_finite_is_remembered() -> None:
    memory, scale = Preconditioned(), torch.tensor([1.0, 2.0])
    facts.finish(memory, torch.tensor([math.nan, math.nan]), {"scale": scale}, torch.tensor(True))
    memory.rollback(torch.ones(2), {"scale": scale})
    assert scale.tolist() == [1.0, 2.0]


def test_after_steps_of_zeros_gradients_come_back() -> None:
    memory, scale = Preconditioned(), torch.ones(N)
    grad = torch.randn(N, generator=torch.Generator().manual_seed(0))
    for _ in range(5000):
        facts.finish(memory, torch.zeros(N), {"scale": scale}, FINE)
    arrived = [roundtrip(memory, EDEN(bits=4), grad, scale, Key(step=step)) for step in range(3)]
    assert all(0.7 < float(each @ grad / (grad @ grad)) < 1.3 for each in arrived)


EVERYWHERE, ROW, QUARTER = torch.ones(N, dtype=torch.bool), torch.arange(N) // 64 == 7, torch.arange(N) % 4 == 0

JUMPS = {
    **{f"{factor} times": (EVERYWHERE, 1.0, 0, factor) for factor in (10, 100, 10_000, 0.0001)},
    **{f"after {steps} zeros": (EVERYWHERE, 0.0, steps, 1.0) for steps in (20, 60, 400)},
    "a row after 400 zeros": (ROW, 0.0, 400, 1.0),
    "a quarter after 400 zeros": (QUARTER, 0.0, 400, 1.0),
    "a row 10,000 times for a step": (ROW, 10_000.0, 1, 1.0),
    "a quarter a hundredth and back": (QUARTER, 0.01, 100, 1.0),
}


def errors(code: gradwire.Compressor, where: Tensor, meanwhile: float, steps: int, after: float) -> list[float]:
    """The error over the energy, in each step after gradients were ``meanwhile`` times as large in a part of them."""
    exchange = Exchange(code, memory="preconditioned", policy=Policy(min_numel=1))
    generator, found = torch.Generator().manual_seed(0), []
    for step in range(30 + steps + 16):
        size = 1.0 if step < 30 else torch.where(where, meanwhile, 1.0) if step < 30 + steps else after
        grad = torch.randn(N, generator=generator) * size
        arrived = grad.clone()
        exchange.begin_step()
        exchange.run(arrived, [("w", (N,))])
        found.append(float((arrived - grad).square().sum() / grad.square().sum()))
    return found[30 + steps :]


@together
@pytest.mark.parametrize("code", ["eden", "eden:bits=4"])
@pytest.mark.parametrize("jump", list(JUMPS))
def test_no_jump_of_the_gradients_makes_twice_the_noise(code: str, jump: str) -> None:
    normal = max(_normal(code))
    assert max(errors(gradwire.compressor(code), *JUMPS[jump])) < 2 * normal


def test_scales_of_an_earlier_version_are_loaded_and_within_the_bound_after_a_step() -> None:
    """Its least scale was a hundredth of the mean one."""
    earlier, now = (
        Exchange(EDEN(), memory=memory, policy=Policy(min_numel=1))
        for memory in (Preconditioned(floor=0.01), Preconditioned())
    )
    sizes = torch.where(QUARTER, 0.0, 1.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        earlier.begin_step()
        earlier.run(torch.randn(N, generator=generator) * sizes, [("w", (N,))])
    now.load_state_dict(earlier.state_dict())
    loaded = now.residuals.worker["scale"]["w"].clone()
    assert torch.equal(loaded, earlier.residuals.worker["scale"]["w"])
    assert loaded.min() < 0.05 * loaded.square().mean().sqrt()
    now.begin_step()
    now.run(torch.randn(N, generator=generator) * sizes, [("w", (N,))])
    now.end_step()
    scale = now.residuals.worker["scale"]["w"]
    assert scale.min() > 0.7 * scale.square().mean().sqrt()


@lru_cache
def _normal(code: str) -> list[float]:
    return errors(gradwire.compressor(code), EVERYWHERE, 1.0, 0, 1.0)


def test_what_is_sent_is_right_on_average_and_small_elements_get_little_noise() -> None:
    """Half of the elements are a hundredth of the others: rotated together they would get the noise of the large."""
    sizes = torch.where(torch.arange(N) % 2 == 0, 1.0, 0.01)
    grad = sizes * torch.randn(N, generator=torch.Generator().manual_seed(1))
    noise = {}
    for flat in (False, True):
        memory, scale = Preconditioned(beta=0.8, floor=1.0 if flat else 0.001), torch.zeros(N)
        late = torch.stack([roundtrip(memory, EDEN(), grad, scale, Key(step=step)) for step in range(200)][100:])
        noise[flat] = float(((late - grad) / sizes)[:, 1::2].square().mean())
        assert float((late.mean(0) - grad).norm() / grad.norm()) < 0.12, "0.76 in a step, over 100 steps"
    assert noise[False] < 1.0
    assert noise[True] > 1000


def test_it_is_saved_by_name_and_follows_the_unit_of_the_gradients() -> None:
    exchange = gradwire.Exchange(EDEN(), memory="preconditioned")
    for _ in range(3):
        exchange.begin_step()
        exchange.run(torch.randn(N), [("w", (N,))])
    scale = exchange.residuals.worker["scale"]["w"].clone()
    assert float(scale.min()) > 0
    again = gradwire.Exchange(EDEN(), memory="preconditioned")
    again.load_state_dict(exchange.state_dict())
    assert torch.equal(again.residuals.worker["scale"]["w"], scale)
    exchange.rescale(0.5)
    assert torch.equal(exchange.residuals.worker["scale"]["w"], scale * 0.5)


def test_methods_that_need_what_they_did_not_send_are_refused() -> None:
    with pytest.raises(ConfigError, match="memory 'preconditioned' loses for good what TopK"):
        check_memory(TopK(), Preconditioned(), force=False)


@together
@pytest.mark.parametrize("code", [FP16(), compose(RandomK(scaled=True), FP16())], ids=str)
def test_a_code_that_ends_long_before_float32_is_refused(code: gradwire.Compressor) -> None:
    """After 500 steps of zeros a gradient of 1 is 370,000 scales: all steps would overflow, and no scale would grow."""
    with pytest.raises(ConfigError, match=r"memory 'preconditioned' divides by scales .* is infinite .*force=True"):
        Exchange(code, memory="preconditioned")
    Exchange(BF16(), memory="preconditioned")


@together
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beta": 1.0}, r"Preconditioned.beta must be in \[0, 1\) in float32, got 1.0"),
        ({"beta": 0.99999999}, r"Preconditioned.beta must be in \[0, 1\) in float32, got 0.99999999"),
        ({"beta": math.nan}, "Preconditioned.beta"),
        ({"floor": -0.1}, r"Preconditioned.floor must be in \[0, 1\], got -0.1"),
        ({"floor": "0"}, "Preconditioned.floor"),
    ],
)
def test_a_value_out_of_range_is_named(options: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Preconditioned(**options)


SHAPES = (("a", (4096,)), ("b", (64, 128)), ("c", (8192,)))


def _exchanged(rank: int, buckets: list[list[tuple[str, tuple[int, ...]]]]) -> dict[str, list[bytes]]:
    """The bits of every mean in three steps."""
    exchange = Exchange(gradwire.compressor("qsgd"), memory=Preconditioned(), group=dist.new_group())
    generator, found = torch.Generator().manual_seed(rank), {}
    for _ in range(3):
        grads = {name: torch.randn(math.prod(shape), generator=generator) for name, shape in SHAPES}
        exchange.begin_step()
        for bucket in buckets:
            flat = torch.cat([grads[name] for name, _ in bucket])
            exchange.run(flat, bucket)
            means = flat.split([math.prod(shape) for _, shape in bucket])
            for (name, _), mean in zip(bucket, means, strict=True):
                found.setdefault(name, []).append(mean.numpy().tobytes())
    return found


def test_tensors_that_share_a_bucket_get_what_each_gets_alone() -> None:
    shared, alone = (run_ranks(2, _exchanged, buckets) for buckets in ([list(SHAPES)], [[each] for each in SHAPES]))
    assert shared == alone
    assert shared[0] == shared[1]
