"""A launch for many pieces gives the bits of a launch for each."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire import ops
from gradwire.ops import Each, Pieces, Places
from gradwire.ops.segments import SEGMENT, segments
from gradwire.ops.sums import SUM_BLOCK
from tests.ops.test_pieces import EXAMPLES, OPERATIONS, examples, joined, shared
from tests.ops.triton import kernel_process
from tests.ops.triton.test_compiled import INEXACT, on_one

MERGED = sorted(name for name in EXAMPLES if name in OPERATIONS and OPERATIONS[name].gpu_takes_many)


def of_sizes(name: str) -> list[dict[str, Any]]:
    """Three calls, the last of which needs several programs."""
    given = examples(name)
    return given if name not in LONG else [*given[:2], LONG[name]()]


def _long_fill() -> dict[str, Any]:
    return {"out": torch.linspace(-2, 2, 5003), "value": 0.25, "when": None}


def _long_accumulate() -> dict[str, Any]:
    return {"grad": torch.linspace(-2, 2, 5003), "residual": torch.ones(5003), "status": None}


def _long_topk() -> dict[str, Any]:
    x = torch.linspace(-2, 2, SEGMENT + 5003).round(decimals=1)
    return {"x": x, **_room(x.numel(), 700)}


def _long_topk_feedback() -> dict[str, Any]:
    x = torch.linspace(-2, 2, SEGMENT + 5003).round(decimals=1)
    return {"grad": x, "residual": x.flip(0) * 0.5, **_room(x.numel(), 700), "status": None}


def _room(n: int, k: int) -> dict[str, Any]:
    counts = torch.zeros(segments(n), dtype=torch.int32)
    return {"values": torch.zeros(k), "indices": torch.zeros(k, dtype=torch.int16), "counts": counts}


def _long_scales() -> dict[str, Any]:
    x = torch.linspace(-2, 2, 2 * SUM_BLOCK + 5)
    return {"out": x, "scale": x.abs().flip(0) + 1, "bad": torch.tensor([False]), "beta": 0.9, "floor": 0.01}


LONG = {
    "accumulate": _long_accumulate,
    "fill_where": _long_fill,
    "precondition_update": _long_scales,
    "topk_encode": _long_topk,
    "topk_encode_feedback": _long_topk_feedback,
}

# One for the scratch memory, three of two for the digits, two to find the places and one to write there; with a
# residual one to add it. The ends of the segments and then each rank. Sums of blocks, their sum, and the scales. A
# rotation, and the codes.
LAUNCHES = {
    "eden_encode": 2,
    "topk_encode": 10,
    "topk_encode_feedback": 11,
    "sparse_add_decoded": 1 + 2,
    "precondition_update": 3,
}
# The second digit is as wide as the third; the row of the second rank lies at another alignment.
KERNELS = {
    "eden_encode": 2,
    "topk_encode": 9,
    "topk_encode_feedback": 10,
    "sparse_add_decoded": 3,
    "precondition_update": 3,
}


@pytest.mark.parametrize("name", MERGED)
def test_the_bits_are_those_of_single_launches(interpreter, name: str) -> None:
    op, singles, given = OPERATIONS[name], of_sizes(name), of_sizes(name)
    common = {key: value for key, value in singles[0].items() if shared(op, key, value)}
    singles = [{**each, **{k: v for k, v in common.items() if k in each}} for each in singles]
    for each in singles:
        op.reference(**each)
    many = {key: value if key in common else joined([each[key] for each in given]) for key, value in given[0].items()}
    answer, launches = interpreter.submit(kernel_process.interpret_many, name, pickle.dumps(many)).result()
    assert launches == LAUNCHES.get(name, 1)
    after = pickle.loads(answer)
    for key, value in after.items():
        if isinstance(value, Pieces):
            for one, two in zip(value.each(), (each[key] for each in singles), strict=True):
                assert torch.equal(one.contiguous().view(torch.uint8), two.view(torch.uint8)), key
    if isinstance(common.get("status"), Tensor):
        assert torch.equal(after["status"], common["status"])


def test_every_piece_has_its_own_stream(interpreter) -> None:
    named = {
        "out": Pieces(torch.zeros(9000, dtype=torch.int32), Places(9000, [0, 8990], [8985, 8])),
        "key": Each((5, -7)),
        "step": 2**40,
    }
    after = pickle.loads(interpreter.submit(kernel_process.interpret_many, "philox", pickle.dumps(named)).result()[0])
    for piece, key in zip(after["out"].each(), named["key"], strict=True):
        alone = torch.empty_like(piece)
        ops.philox(alone, key, 2**40)
        assert torch.equal(alone, piece)


def test_every_piece_has_its_own_factor(interpreter) -> None:
    out, factors = Pieces(torch.zeros(5003), Places(5003, [0, 4900], [4899, 100])), Each((0.1, -2.0))
    named = {"out": out, "value": factors, "when": None}
    after = pickle.loads(
        interpreter.submit(kernel_process.interpret_many, "fill_where", pickle.dumps(named)).result()[0]
    )
    for piece, factor in zip(after["out"].each(), factors, strict=True):
        assert torch.equal(piece, torch.full_like(piece, factor))


@on_one(*MERGED)
def test_the_compiler_takes_them(compilers, name: str, capability: int) -> None:
    given, op = examples(name), OPERATIONS[name]
    many = {k: v if shared(op, k, v) else joined([each[k] for each in given]) for k, v in given[0].items()}
    compiled = compilers(capability).submit(kernel_process.compile_many, name, [many]).result()
    # What another operation of this process has had compiled is not compiled again.
    assert 0 < len(compiled) <= KERNELS.get(name, 1)
    for kernel in compiled:
        assert not kernel.fused
        assert INEXACT.findall(kernel.ptx) == []


def test_what_is_asked_of_a_gpu_is_counted_without_one() -> None:
    assert {
        "cast_encode",
        "twobit_encode_feedback",
        "onebit_add_decoded",
        "qsgd_encode",
        "copy_where",
        "topk_encode",
    } <= set(MERGED)
    assert "threshold_encode" not in MERGED


def test_what_a_reference_does_is_not_recorded_but_done_for_each_piece(interpreter) -> None:
    """Codes with one scale for a whole tensor have no kernel."""
    singles, given = ([{**each, "block": 0} for each in examples("eightbit_add_decoded")] for _ in range(2))
    for each in (*singles, *given):
        each["scales"] = each["scales"][..., :1]
    op = OPERATIONS["eightbit_add_decoded"]
    many = {k: v if shared(op, k, v) else joined([each[k] for each in given]) for k, v in given[0].items()}
    for _ in range(2):
        for each in singles:
            op.reference(**each)
        answer, launches = interpreter.submit(kernel_process.interpret_many, op.name, pickle.dumps(many)).result()
        many = pickle.loads(answer)
        assert launches == 0
        for one, two in zip(many["out"].each(), (each["out"] for each in singles), strict=True):
            assert torch.equal(one, two)
