"""A launch for many pieces gives the bits of a launch for each."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire import kernels
from gradwire.kernels import Each, Pieces, Places
from gradwire.kernels.segments import SEGMENT, segments
from gradwire.kernels.sums import SUM_BLOCK
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


def _long_moments() -> dict[str, Any]:
    x = torch.linspace(-2, 2, 40_003)
    return {"grad": x, "residual": x.flip(0) * 0.3, "table": torch.zeros(40), "centred": False, "status": None}


def _long_momentum() -> dict[str, Any]:
    x = torch.linspace(-2, 2, 5003)
    return {"grad": x, "momentum": x.flip(0), "undo": torch.zeros(5003), "beta": 0.9, "nesterov": False, "status": None}


def _long_scales() -> dict[str, Any]:
    x = torch.linspace(-2, 2, 2 * SUM_BLOCK + 5)
    return {"out": x, "scale": x.abs().flip(0) + 1, "bad": torch.tensor([False]), "beta": 0.9, "floor": 0.01}


LONG = {
    "accumulate": _long_accumulate,
    "accumulate_momentum": _long_momentum,
    "fill_where": _long_fill,
    "moments_feedback": _long_moments,
    "precondition_update": _long_scales,
    "topk_encode": _long_topk,
    "topk_encode_feedback": _long_topk_feedback,
}

# One that clears the scratch memory, four for the digits, one to count what is kept and one to write it. One for each
# rank. Sums of blocks, their sum, and the scales. A rotation, and the codes.
LAUNCHES = {
    "eden_encode": 2,
    "topk_encode": 7,
    "topk_encode_feedback": 7,
    "randomk_add_decoded": 2,
    "sparse_add_decoded": 2,
    "precondition_update": 3,
}
# Only the first digits are counted with a residual; the row of the second rank lies at another alignment.
KERNELS = {
    "eden_encode": 2,
    "topk_encode": 7,
    "topk_encode_feedback": 7,
    "randomk_add_decoded": 2,
    "sparse_add_decoded": 2,
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
        kernels.philox(alone, key, 2**40)
        assert torch.equal(alone, piece)


def test_every_piece_has_its_own_factor(interpreter) -> None:
    out, factors = Pieces(torch.zeros(5003), Places(5003, [0, 4900], [4899, 100])), Each((0.1, -2.0))
    named = {"out": out, "value": factors, "when": None}
    after = pickle.loads(
        interpreter.submit(kernel_process.interpret_many, "fill_where", pickle.dumps(named)).result()[0]
    )
    for piece, factor in zip(after["out"].each(), factors, strict=True):
        assert torch.equal(piece, torch.full_like(piece, factor))


def test_norms_of_tensors_of_different_lengths(interpreter) -> None:
    op, sizes = OPERATIONS["moments_norm"], (40_003, 1, 4096)
    tables = [torch.rand(4 * -(-n // 4096), generator=torch.Generator().manual_seed(n)) for n in sizes]
    expected = []
    for table, n in zip(tables, sizes, strict=True):
        op.reference(table, norm := torch.empty(1), "clipped", 0.5, n)
        expected.append(norm)
    named = {"table": joined(tables), "norm": joined([torch.zeros(1) for _ in sizes])}
    named |= {"kind": "clipped", "factor": 0.5, "n": Each(sizes)}
    answer, launches = interpreter.submit(kernel_process.interpret_many, op.name, pickle.dumps(named)).result()
    assert launches == 1
    assert [each.item() for each in pickle.loads(answer)["norm"].each()] == [each.item() for each in expected]


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


def test_pieces_that_need_different_kernels_have_launches_of_their_own(interpreter) -> None:
    """Blocks of different lengths are tiles of different shapes."""
    op, blocks = OPERATIONS["qsgd_encode"], (16, 32, 2048)
    singles = [each | {"block": block} for each, block in zip(examples(op.name), blocks, strict=True)]
    given = [each | {"block": block} for each, block in zip(examples(op.name), blocks, strict=True)]
    for each in (*singles, *given):
        each["norms"] = each["norms"].new_zeros(-(-each["x"].numel() // each["block"]))
    for each in singles:
        op.reference(**each)
    many = {k: v if shared(op, k, v) else joined([each[k] for each in given]) for k, v in given[0].items()}
    many["block"] = Each(blocks)
    answer, launches = interpreter.submit(kernel_process.interpret_many, op.name, pickle.dumps(many)).result()
    assert launches == 0
    after = pickle.loads(answer)
    for name in ("norms", "codes"):
        for one, two in zip(after[name].each(), (each[name] for each in singles), strict=True):
            assert torch.equal(one, two), name


def test_one_scale_for_a_tensor_is_three_launches(interpreter) -> None:
    """Its largest magnitude is found in a pass of its own, in a word that is cleared first."""
    op = OPERATIONS["eightbit_encode_feedback"]
    sizes, generator = (5003, 1, 700), torch.Generator().manual_seed(1)
    calls = [
        {
            "grad": torch.randn(n, generator=generator),
            "residual": torch.randn(n, generator=generator),
            "scales": torch.empty(1),
            "codes": torch.empty(n, dtype=torch.uint8),
        }
        for n in sizes
    ]
    many: dict[str, Any] = {name: joined([each[name] for each in calls]) for name in calls[0]}
    many |= {"kind": "dynamic", "block": 0, "status": torch.zeros(1, dtype=torch.int32)}
    for each in calls:
        op.reference(**each, kind="dynamic", block=0, status=torch.zeros(1, dtype=torch.int32))
    answer, launches = interpreter.submit(kernel_process.interpret_many, op.name, pickle.dumps(many)).result()
    assert launches == 3
    after = pickle.loads(answer)
    for name in calls[0]:
        for one, two in zip(after[name].each(), (each[name] for each in calls), strict=True):
            assert torch.equal(one, two), name
