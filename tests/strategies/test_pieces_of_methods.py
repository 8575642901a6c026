"""A method that says it takes pieces does to those of a message in one call what it does to each alone."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.engine.part import Batch, Message, Part, Piece, Unit, nonfinite
from gradwire.kernels.stored import shaped
from gradwire.memory import facts
from gradwire.memory.base import Memory, default_memory
from gradwire.memory.residual import Residual
from gradwire.vocabulary import Key

SHAPES = [(20, 50), (37,), (16, 16), (64, 64), (5,)]
SIZES = [math.prod(shape) for shape in SHAPES]

FORMS = [
    {"name": "blockwise8", "block": 64},
    {"name": "fp8", "block": 64},
    {"name": "natural", "block": 64, "rounding": "nearest"},
    {"name": "signsgd", "ties": "zero"},
    {"name": "signum", "ties": "zero"},
    {"name": "loco", "block": 64},
    {"name": "qsgd", "block": None},
    {"name": "qsgd", "bits": 2, "block": None, "scaled": True},
    {"name": "qsgd", "block": 64, "norm": "l2", "scaled": True},
    {"name": "demo", "sign": False, "ratio": 0.1, "chunk": 7},
    {"name": "compose", "outer": {"name": "randomk", "ratio": 0.1}, "inner": {"name": "blockwise8", "block": 64}},
]
"""Others than those that are built without parameters."""


def methods() -> list[Compressor]:
    """Every method of one round that says so, with a memory that serves it."""
    found = [registry.build("compressors", name) for name in registry.names("compressors")]
    found += [registry.from_config("compressors", form) for form in FORMS]
    return [code for code in found if capabilities.takes_pieces(code) and not isinstance(code, MultiRound)]


def scale_of(code: Compressor) -> float:
    """The factor with which a method is encoded: where payloads are summed, that of the mean of a few ranks."""
    return 0.3 if code.summable else 1.0


def part_of(code: Compressor, memory: Memory, *, together: bool, scale: float | None = None) -> Part:
    pieces, lo = [], 0
    grain = memory.form.grain
    rooms = [-(-size // grain) for size in SIZES]
    kept = {name: torch.split(memory.form.zeros(sum(rooms) * grain), rooms) for name in memory.buffers}
    for number, (size, shape) in enumerate(zip(SIZES, SHAPES, strict=True)):
        unit = Unit(((f"p{number}", size),), shape, lo, code, memory)
        own = {name: shaped(tensors[number], shape) for name, tensors in kept.items()}
        pieces.append(Piece(unit, memory, shape, lo, 0, code.init_state(shape, Key()), own))
        lo += size
    part = Part(pieces, scale_of(code) if scale is None else scale)
    if not together:
        part.batches = [Batch([piece], (number,)) for number, piece in enumerate(pieces)]
    return part


def steps(part: Part, undo: str) -> list[Tensor]:
    """The tensors after four steps, of which the third is bad and taken back in one of two ways."""
    message, found = Message(part.packing, torch.device("cpu")), []
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 5):
        flat = torch.randn(sum(SIZES), generator=generator)
        flat[100:140] = 0.0
        if step == 3:
            flat[7] = torch.inf
        bad = nonfinite(flat)
        part.encode(flat, message, Key(step=step))
        assert bool(message.status.any()) == bool(bad)
        if undo == "select":
            part.restore(flat, bad)
        elif bad:
            part.rollback(flat)
        found += [message.buffer.clone(), *(tensor.clone() for p in part.pieces for tensor in p.kept.values())]
        part.decode(message.stacked, flat, 0.5)
        part.finish(flat, bad)
        part.settle(flat)
        found.append(flat.nan_to_num(nan=12345.0))
    return found


@pytest.mark.parametrize("undo", ["branch", "select"])
@pytest.mark.parametrize("code", methods(), ids=repr)
def test_pieces_together_have_the_bits_of_pieces_alone(code: Compressor, undo: str) -> None:
    memory = registry.build("memory", default_memory(code))
    together, alone = (part_of(code, memory, together=joined) for joined in (True, False))
    assert len(together.batches) == (1 if facts.takes_pieces(memory, scale_of(code)) else len(SIZES))
    assert len(alone.batches) == len(SIZES)
    for one, two in zip(steps(together, undo), steps(alone, undo), strict=True):
        assert torch.equal(one.view(torch.uint8), two.view(torch.uint8))


@pytest.mark.parametrize("name", ["qsgd", "topk", "demo", "onebit"])
def test_a_factor_that_a_method_does_not_take_itself_is_taken_tensor_by_tensor(name: str) -> None:
    code = registry.build("compressors", name)
    memory = registry.build("memory", capabilities.memory(code) or "residual")
    together, alone = (part_of(code, memory, together=joined, scale=0.5) for joined in (True, False))
    assert len(together.batches) == len(SIZES)
    for one, two in zip(steps(together, "branch"), steps(alone, "branch"), strict=True):
        assert torch.equal(one.view(torch.uint8), two.view(torch.uint8))


def given(part: Part, bad_step: int, way: str) -> list[Tensor]:
    """All that remains of three steps as ``deliver`` ends them: by a branch of the host, or as an accelerator does."""
    message, found = Message(part.packing, torch.device("cpu")), []
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 4):
        flat = torch.randn(sum(SIZES), generator=generator)
        if step == bad_step:
            flat[7] = torch.inf
        bad = nonfinite(flat)
        part.encode(flat, message, Key(step=step))
        decode = partial(part.decode, message.stacked, flat, 0.5)
        if way == "branch":
            part.deliver(flat, bad, decode)
        else:
            part.deliver_unseen(flat, bad, decode, own=way == "at once")
        found += [flat, *(tensor.clone() for p in part.pieces for tensor in (*p.kept.values(), *p.state.values()))]
    return found


@pytest.mark.parametrize("way", ["at once", "select"])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("code", methods(), ids=repr)
def test_what_an_accelerator_hands_out_and_keeps_is_what_the_branch_does(
    code: Compressor, together: bool, way: str
) -> None:
    memory = registry.build("memory", default_memory(code))
    for bad_step in (0, 2):
        wanted = given(part_of(code, memory, together=together), bad_step, "branch")
        found = given(part_of(code, memory, together=together), bad_step, way)
        for one, two in zip(found, wanted, strict=True):
            assert torch.equal(one.isnan(), two.isnan())
            assert torch.equal(one.nan_to_num(nan=0.5).view(torch.uint8), two.nan_to_num(nan=0.5).view(torch.uint8))


def test_the_sums_of_some_methods_begin_where_the_step_is_taken_back() -> None:
    begins = {"topk": True, "dgc": True, "eden": True, "twobit": False, "ef21": False, "signsgd": False}
    for name, at_once in begins.items():
        code = registry.build("compressors", name)
        part = part_of(code, registry.build("memory", default_memory(code)), together=True)
        assert [batch.begins_at_once for batch in part.batches] == [at_once] * len(part.batches)


def test_many_methods_say_so() -> None:
    names = "bf16 blockwise8 compose demo dgc dynamic8 ef21 fp8 loco lpc_svrg natural oktopk onebit_sgd qsgd randomk"
    assert {*names.split(), "signsgd", "signum", "terngrad"} <= {code.name for code in methods()}


@dataclasses.dataclass(frozen=True)
class CountedResidual(Residual):
    """Keeps how often it was encoded, too, and undoes that in a bad step."""

    name = "counted_residual"

    buffers = ("residual", "count")

    def takes_pieces(self, scale: float) -> bool:
        return True

    def encode(self, compressor: Compressor, grad: Tensor, kept: Any, *rest: Any, **named: Any) -> None:
        kept["count"].add_(1.0)
        super().encode(compressor, grad, kept, *rest, **named)

    def rollback(self, grad: Tensor, kept: Any, when: Tensor | None = None) -> None:
        super().rollback(grad, kept, when)
        kept["count"].sub_(1.0 if when is None else when.to(torch.float32))


def test_a_memory_that_undoes_more_than_its_base_is_asked_for_it_on_an_accelerator() -> None:
    code = registry.build("compressors", "topk")
    wanted, found = (given(part_of(code, CountedResidual(), together=False), 2, way) for way in ("branch", "at once"))
    for one, two in zip(found, wanted, strict=True):
        assert torch.equal(one.nan_to_num(), two.nan_to_num())
    assert any(torch.equal(each, torch.full_like(each, 2.0)) for each in wanted)
