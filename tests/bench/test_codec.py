import math

import pytest
import torch

from gradwire import registry
from gradwire.bench import codec
from gradwire.bench.steps import STEPS
from gradwire.bench.workload import Workload
from gradwire.compressors.none import Identity
from gradwire.compressors.powersgd import PowerSGD
from gradwire.compressors.topk import TopK
from gradwire.compressors.twobit import TwoBit

STEP = {step.name: step for step in STEPS}
N = 4096


def fewest(name, compressor, n=N):
    return STEP[name].fewest_bytes(STEP[name].workload(compressor, n))


@pytest.mark.parametrize(
    ("compressor", "expected"), [(TwoBit(), [4.25, 12.25, 16.25, 8.25, 10]), (Identity(), [8, 16, 20, 12, 40])]
)
def test_fewest_bytes_of_one_pass(compressor, expected):
    assert [fewest(name, compressor) / N for name in STEP] == expected


def test_fewest_bytes_of_several_rounds_and_of_sparse_payloads():
    code = PowerSGD(rank=1)
    wire = code.layout((64, 64)).nbytes
    assert fewest("encode", code) == 8 * N + wire
    assert fewest("encode_feedback", code) == 24 * N + wire
    sparse = TopK(ratio=0.01)
    wire = sparse.layout((64, 64)).nbytes
    assert fewest("decode", sparse) == 128 * sparse.count(N) + wire
    assert fewest("decode8", TopK(ratio=1.0)) == 8 * N + 8 * TopK(ratio=1.0).layout((64, 64)).nbytes


def test_rows_cover_every_operation_and_their_figures_fit_together():
    rows = list(codec.rows([TwoBit(0.25)], [N, 1000], repeats=3))
    assert [(row["size"], row["op"]) for row in rows] == [(n, name) for n in (N, 1000) for name in STEP]
    for row in rows:
        assert row["method"] == "twobit"
        assert row["params"] == {"threshold": 0.25}
        assert 0 < row["seconds_low"] <= row["seconds"] <= row["seconds_high"]
        assert math.isclose(row["triad_ratio"], row["triad_seconds"] / row["seconds"])
        assert row["wire_bits_per_element"] == 8 * TwoBit().layout((row["size"],)).nbytes / row["size"]
        assert row["repeats"] == 3
        assert row["checked_size"] == row["size"]
        assert row["threads"] == 1


def test_every_registered_method_is_measured_by_default():
    assert [code.name for code in codec.registered()] == list(registry.names("compressors"))
    assert codec.SIZES[0] == 2**12
    assert codec.SIZES[-1] == 2**26
    assert all(b == 4 * a for a, b in zip(codec.SIZES, codec.SIZES[1:], strict=False))


def test_each_round_starts_from_the_same_gradient_and_residual():
    work = Workload(TwoBit(), N)
    restore = codec._restorer(STEP["encode_feedback_undo"], work)
    fresh = {name: tensor.clone() for name, tensor in work.tensors() if name in ("grad", "residual")}
    STEP["encode_feedback_undo"].run(work)
    assert not torch.equal(work.grad, fresh["grad"])
    assert not torch.equal(work.residual, fresh["residual"])
    restore()
    assert torch.equal(work.grad, fresh["grad"])
    assert torch.equal(work.residual, fresh["residual"])


def test_workloads_of_one_size_hold_the_same_values_and_different_ranks_do_not():
    first, second = (STEP["decode8"].workload(TwoBit(), 1000) for _ in range(2))
    for (name, a), (_, b) in zip(first.tensors(), second.tensors(), strict=True):
        assert torch.equal(a, b), name
    assert len({bytes(first.of_rank(rank)[0].tolist()) for rank in range(8)}) == 8
    assert not torch.equal(first.grad, first.residual)
