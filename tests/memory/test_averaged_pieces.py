"""Codes of 8 bits are kept of many parameters in one call, with the bits of one call for each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.compressors.levels.loco import LoCo
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.engine.part import Message, Part, Piece, Unit
from gradwire.kernels.base import OPERATIONS
from gradwire.memory.averaged_error import AveragedError
from gradwire.vocabulary import Key

SIZES = [1000, 37, 256, 4096, 5]


def part_of(code: Compressor, memory: AveragedError, *, joined: bool) -> Part:
    """Pieces whose codes lie in one tensor, or each in its own."""
    rows = [-(-size // memory.block) for size in SIZES]
    whole = memory.form.zeros(sum(rows) * memory.block)
    codes = torch.split(whole, rows) if joined else [each.clone() for each in torch.split(whole, rows)]
    pieces, lo = [], 0
    for number, (size, kept) in enumerate(zip(SIZES, codes, strict=True)):
        unit = Unit(((f"p{number}", size),), (size,), lo, code, memory)
        pieces.append(Piece(unit, memory, (size,), lo, state={}, kept={"residual": kept}))
        lo += size
    return Part(pieces)


def steps(part: Part, undo: str) -> list[Tensor]:
    """The tensors after four steps, of which the third is taken back in one of two ways."""
    message, found = Message(part.packing, torch.device("cpu")), []
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 5):
        flat = torch.randn(sum(SIZES), generator=generator)
        part.encode(flat, message, Key(step=step))
        if undo == "branch" and step == 3:
            part.rollback(flat)
        if undo == "select":
            part.restore(flat, torch.tensor(step == 3))
        found += [message.buffer.clone(), *(piece.kept["residual"].clone() for piece in part.pieces)]
        part.decode(message.stacked, flat, 0.5)
        found.append(flat)
    return found


@pytest.mark.parametrize("undo", ["branch", "select"])
@pytest.mark.parametrize(
    ("code", "memory"),
    [
        (LoCo(), AveragedError()),
        (LoCo(block=128), AveragedError()),
        (LoCo(block=64), AveragedError(beta=0.5, reset=2, block=64)),
        (QSGD(bits=4), AveragedError()),
    ],
)
def test_pieces_have_the_bits_of_tensors(code: Compressor, memory: AveragedError, undo: str) -> None:
    together, alone = (part_of(code, memory, joined=joined) for joined in (True, False))
    assert (len(together.batches), len(alone.batches)) == (1, len(SIZES))
    assert all(torch.equal(a, b) for a, b in zip(steps(together, undo), steps(alone, undo), strict=True))


def test_a_step_that_is_taken_back_leaves_no_trace() -> None:
    part = part_of(LoCo(), AveragedError(), joined=True)
    message, flat = Message(part.packing, torch.device("cpu")), torch.randn(sum(SIZES))
    part.encode(flat.clone(), message, Key(step=1))
    before = [piece.kept["residual"].clone() for piece in part.pieces]
    assert any(each.any() for each in before)
    part.encode(flat, message, Key(step=2))
    assert not all(torch.equal(piece.kept["residual"], each) for piece, each in zip(part.pieces, before, strict=True))
    part.rollback(flat)
    assert all(torch.equal(piece.kept["residual"], each) for piece, each in zip(part.pieces, before, strict=True))


def test_all_pieces_are_encoded_by_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    part, calls = part_of(LoCo(), AveragedError(), joined=True), []
    message, flat = Message(part.packing, torch.device("cpu")), torch.randn(sum(SIZES))
    op = OPERATIONS["loco_encode_averaged"]
    monkeypatch.setitem(vars(op), "many", lambda first, *_rest: calls.append(len(first)))
    part.encode(flat, message, Key(step=1))
    assert calls == [len(SIZES)]
