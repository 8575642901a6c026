import math

import pytest
import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire_lab.bench import codec
from gradwire_lab.bench.budget import available_bytes
from gradwire_lab.bench.steps import STEPS
from gradwire_lab.bench.verify import check
from gradwire_lab.bench.workload import Workload
from tests.strategies.methods import Alternating, NonZero, SharedScale

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


OWN = [
    name
    for name in registry.names("compressors")
    if capabilities.memory(registry.find("compressors", name)) not in (None, "none")
]


@pytest.mark.parametrize("op", ["encode_feedback", "encode_feedback_undo"])
@pytest.mark.parametrize("name", OWN)
def test_a_method_with_a_memory_of_its_own_is_timed_as_an_exchange_encodes_it(name, op):
    code = registry.build("compressors", name)
    assert check(STEP[op], code, 1000) == 1000
    work, exchange = STEP[op].workload(code, N), Exchange(code, policy=Policy(min_numel=0))
    grad, kept = work.grad.clone(), {name: tensor.clone() for name, tensor in work.kept.items()}
    STEP[op].run(work)
    payload = code.layout(work.shape).views(torch.zeros_like(work.rows[0]))
    state, status = code.init_state(work.shape, work.key), torch.zeros(1, dtype=torch.int32)
    exchange.methods.memory_for(code).encode(code, grad, kept, payload, state, work.key, status)
    assert all(torch.equal(work.kept[name], tensor) for name, tensor in kept.items())
    assert torch.equal(work.grad, grad)
    changed = {"dgc": 2, "variance": 2}.get(name, 1)
    each = 2 * exchange.methods.memory_for(code).form.nbytes(N) + 4 * N
    assert STEP[op].fewest_bytes(work) == 4 * N + changed * each + round(work.sent)
    work.restore()
    assert work.changed() == 0


def test_rows_cover_every_operation_and_their_figures_fit_together():
    rows = list(codec.rows([TwoBit(0.25)], [N, 1000], repeats=3))
    assert [(row["size"], row["op"]) for row in rows] == [(n, name) for n in (N, 1000) for name in STEP]
    for row in rows:
        assert row["method"] == "twobit"
        assert row["params"] == capabilities.properties(TwoBit(0.25))["params"]
        assert 0 < row["seconds_low"] <= row["seconds"] <= row["seconds_high"]
        assert math.isclose(row["triad_ratio"], row["triad_seconds"] / row["seconds"])
        assert row["wire_bits_per_element"] == 8 * TwoBit().layout((row["size"],)).nbytes / row["size"]
        assert row["repeats"] == len(row["samples"]) == 3
        assert row["state_bytes_per_element"] == 4
        assert row["checked_size"] == row["size"]
        assert row["threads"] == 1


def test_every_registered_method_is_measured_by_default():
    assert [code.name for code in codec.registered()] == list(registry.names("compressors"))
    assert codec.SIZES[0] == 2**12
    assert codec.SIZES[-1] == 2**26
    assert all(b == 4 * a for a, b in zip(codec.SIZES, codec.SIZES[1:], strict=False))


def test_each_round_starts_from_the_same_gradient_and_residual():
    work = Workload(TwoBit(), N)
    fresh = {name: tensor.clone() for name, tensor in work.tensors() if name in ("grad", "residual")}
    STEP["encode_feedback_undo"].run(work)
    assert not torch.equal(work.grad, fresh["grad"])
    assert not torch.equal(work.residual, fresh["residual"])
    work.restore()
    assert torch.equal(work.grad, fresh["grad"])
    assert torch.equal(work.residual, fresh["residual"])


def test_workloads_of_one_size_hold_the_same_values_and_different_ranks_do_not():
    first, second = (STEP["decode8"].workload(TwoBit(), 1000) for _ in range(2))
    for (name, a), (_, b) in zip(first.tensors(), second.tensors(), strict=True):
        assert torch.equal(a, b), name
    assert len({bytes(first.of_rank(rank)[0].tolist()) for rank in range(8)}) == 8
    assert not torch.equal(first.grad, first.residual)


def test_of_a_variable_size_only_what_travels_counts():
    rows = {row["op"]: row for row in codec.rows([NonZero(least=1.0)], [N], repeats=1)}
    many = int((Workload(NonZero(), N).grad.abs() > 1.0).sum())
    assert rows["encode"]["wire_bits_per_element"] == rows["decode"]["wire_bits_per_element"] == 8 * (4 + 8 * many) / N
    assert rows["encode"]["bytes_moved"] == 4 * N + 4 + 8 * many
    assert rows["encode_feedback"]["wire_bits_per_element"] > rows["encode"]["wire_bits_per_element"]
    few = {row["op"]: row for row in codec.rows([NonZero(least=2.5)], [N], repeats=1)}
    touched = int((Workload(NonZero(), N).grad.abs() > 2.5).sum())
    assert few["decode"]["bytes_moved"] == 128 * touched + 4 + 8 * touched


@pytest.mark.parametrize("compressor", [SharedScale(), Alternating()], ids=lambda code: code.name)
def test_methods_of_several_rounds_and_of_any_reduction_are_measured(compressor):
    work = Workload(compressor, N)
    for step in STEPS:
        assert check(step, compressor, 1000) == 1000
        figures = codec._timed(step, step.workload(compressor, N), 1)
        assert figures["wire_bits_per_element"] == 8 * work.layout.nbytes / N
        assert figures["seconds"] > 0


SLOW = """
    def encode(self, x, payload, state, key):
        import time
        time.sleep(1e-5 * x.numel())
        super().encode(x, payload, state, key)
"""


def test_a_size_that_would_take_too_long_is_a_row_that_says_so(broken):
    rows = list(codec.rows([broken(SLOW)], [1000, 4000, 16000], repeats=1, seconds=0.2))
    assert [(row["size"], row["op"]) for row in rows] == [(n, name) for n in (1000, 4000, 16000) for name in STEP]
    skipped = {(row["size"], row["op"]) for row in rows if "skipped" in row}
    assert {(4000, "encode"), (16000, "encode")} <= skipped
    assert all(size > 1000 for size, _ in skipped)
    for row in rows:
        if "skipped" in row:
            assert "more than the 0.2 s of a row" in row["skipped"]
            assert "seconds" not in row
            assert row["threads"] == 1


def test_a_size_that_does_not_fit_is_not_tried(monkeypatch):
    monkeypatch.setattr("gradwire_lab.bench.budget.available_bytes", lambda: 1e6)
    small, large = (list(codec.rows([TwoBit()], [n], repeats=1)) for n in (1000, 1 << 20))
    assert not any("skipped" in row for row in small)
    assert all(row["skipped"].endswith("GB of memory, 0.0 GB are free") for row in large)
    assert available_bytes() > 1e6


def test_payloads_of_a_method_of_rounds_are_not_decoded_together():
    rows = {row["op"]: row for row in codec.rows([PowerSGD()], [1000], repeats=1)}
    assert rows["decode8"]["skipped"] == "the payload is the mean over all ranks already"
    assert not any("skipped" in row for op, row in rows.items() if op != "decode8")


def test_a_method_is_named_as_on_the_command_line():
    assert codec.label({"method": "qsgd", "params": capabilities.properties(QSGD(bits=8))["params"]}) == "qsgd:bits=8"
    assert codec.label({"method": "qsgd", "params": capabilities.properties(QSGD())["params"]}) == "qsgd"
