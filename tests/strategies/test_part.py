"""Pieces in a message: what a step did can be taken back, states included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.engine.part import Message, Part, Piece, Unit, nonfinite
from gradwire.memory.residual import Residual
from gradwire.vocabulary import Field, Key, Layout, Payload, State


@dataclass(frozen=True)
class Counting(Compressor):
    """Sends zeros and counts its calls: a method whose state moves with every encode."""

    name = "counting"
    reference = "none"

    def layout(self, shape: Sequence[int]) -> Layout:
        return Layout((Field("nothing", torch.uint8, 1),))

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        return {"calls": torch.zeros(1)}

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        payload[0].zero_()
        state["calls"] += 1

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        return


def part_of(compressor: Compressor, n: int) -> Part:
    unit = Unit((("w", n),), (n,), 0, compressor, Residual())
    state = compressor.init_state((n,), Key())
    return Part([Piece(unit, unit.memory, (n,), 0, 0, state, {"residual": torch.zeros(n)})])


def test_rollback_restores_residual_and_state() -> None:
    part, flat = part_of(Counting(), 4), torch.ones(4)
    message = Message(part.packing, flat.device)
    part.encode(flat.clone(), message, Key())
    work = flat.clone()
    part.encode(work, message, Key(step=1))
    (piece,) = part.pieces
    assert piece.state["calls"].item() == 2
    assert piece.kept["residual"].tolist() == [2.0] * 4
    part.rollback(work)
    assert piece.state["calls"].item() == 1
    assert piece.kept["residual"].tolist() == [1.0] * 4


def test_a_bad_step_is_taken_back_and_delivers_nan() -> None:
    part, flat = part_of(TwoBit(), 16), torch.full((16,), 0.3)
    message = Message(part.packing, flat.device)
    for bad in (True, False):
        work = flat.clone()
        part.encode(work, message, Key())
        part.deliver(work, torch.tensor(bad), partial(part.begin, work))
        assert work.isnan().all() if bad else work.eq(0).all()
        assert part.pieces[0].kept["residual"].eq(0.0 if bad else 0.3).all()


def test_what_an_accelerator_takes_back_is_what_the_branch_does() -> None:
    part = part_of(TwoBit(), 16)
    residual, message = part.pieces[0].kept["residual"], Message(part.packing, torch.device("cpu"))
    for bad in (torch.tensor(True), torch.tensor(False)):
        residual.fill_(0.1)
        work = torch.full((16,), 0.3)
        part.encode(work, message, Key())
        part.restore(work, bad)
        assert residual.eq(torch.tensor(0.1) if bad else torch.tensor(0.1) + 0.3).all()


def test_a_piece_names_its_stream_by_unit_and_offset() -> None:
    unit = Unit((("w", 64),), (64,), 7, TwoBit(), Residual())
    ids = {Piece(unit, unit.memory, (16,), lo, start).id for lo, start in [(7, 0), (0, 0), (23, 16), (39, 32)]}
    assert len(ids) == 3


def test_nonfinite_sees_each_kind_and_nothing_else() -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            assert nonfinite(torch.tensor([0.0, value, 1.0], dtype=dtype))
    assert not nonfinite(torch.tensor([3.4e38, -3.4e38, 1e-45]))
    assert not nonfinite(torch.zeros(0))


def test_a_message_of_fixed_size_payloads_has_no_gaps_but_those_of_alignment() -> None:
    code, x = TopK(ratio=0.5), torch.arange(1.0, 11.0)
    part = part_of(code, 10)
    message = Message(part.packing, x.device)
    part.encode(x.clone(), message, Key())
    send = torch.zeros_like(message.buffer)
    row = send[: part.close_gaps(message, send)]
    assert row.numel() == part.length(part.sizes([]))
    (payload,) = part.payloads(row)
    code.add_decoded(payload, out := torch.zeros(10))
    assert out.tolist() == [0.0] * 5 + [6.0, 7.0, 8.0, 9.0, 10.0]
