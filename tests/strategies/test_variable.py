"""Payloads whose size depends on the values: only what is used travels, and all ranks end with the same bits."""

import pytest
import torch

from gradwire import registry
from gradwire.compressors.sparse.topk import TopK
from gradwire.engine.part import Part, Unit
from gradwire.engine.strategies.base import bare_pieces
from gradwire.engine.strategies.two_phase import TwoPhase
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from gradwire.testing.processes import run_ranks
from gradwire.wire import sent_nbytes
from gradwire_lab.bench.operations import OperationCount
from tests.strategies.jobs import SHAPES, gradient, numel
from tests.strategies.methods import NonZero, run_method

WORLD = 3


def sizes_of(step, rank):
    """Used bytes of each compressed parameter."""
    xs = torch.split(gradient(step, rank, numel(SHAPES)), [torch.Size(shape).numel() for _, shape in SHAPES])
    return [4 + 8 * int((x.abs() > 2.5).sum()) for x in xs if x.numel() >= 64]


@pytest.mark.parametrize("strategy", ["allgather", "broadcast"])
def test_the_result_is_the_mean_of_what_was_sent(strategy):
    results = run_ranks(WORLD, run_method, NonZero(least=2.5), None, strategy, 2)
    for step in range(2):
        xs = [gradient(step, rank, numel(SHAPES)) for rank in range(WORLD)]
        expected = torch.stack([torch.where(x.abs() > 2.5, x, 0.0) for x in xs]).mean(0)
        dense = slice(40 * 33, 40 * 33 + 33)
        expected[dense] = torch.stack([x[dense] for x in xs]).mean(0)
        for result in results:
            torch.testing.assert_close(result["outputs"][step], expected, rtol=1e-6, atol=1e-7)
            assert torch.equal(result["outputs"][step], results[0]["outputs"][step])


def test_only_what_is_used_travels():
    results = run_ranks(WORLD, run_method, NonZero(least=2.5), None, "allgather", 1)
    for rank, result in enumerate(results):
        message = 8 + sum(-(-nbytes // 8) * 8 for nbytes in sizes_of(0, rank))
        dense = 2 * (WORLD - 1) * 33 * 4 // WORLD
        assert result["metrics"]["bytes_sent"] == (WORLD - 1) * (message + 4 * len(sizes_of(0, rank))) + dense


def test_an_infinity_on_one_rank_takes_the_step_back_everywhere():
    results = run_ranks(WORLD, run_method, NonZero(least=2.5), "residual", "allgather", 3, 1)
    for result in results:
        assert bool(result["outputs"][1][:100].isnan().all())
        assert all(torch.equal(result["kept"][0][name], result["kept"][1][name]) for name in result["kept"][0])
        assert bool(result["outputs"][2].isfinite().all())
        assert result["metrics"]["nonfinite_steps"] == 1


def test_two_phase_refuses_it_with_the_remedy():
    with pytest.raises(ConfigError, match=r"variable size.*allgather"):
        TwoPhase().check(NonZero())


def test_a_payload_that_claims_more_than_its_capacity_is_refused():
    code = NonZero(least=2.0)
    payload = code.compress(gaussian(10))
    payload[:4].view(torch.int32).fill_(81)
    with pytest.raises(WireError, match="at most 80 bytes of its stream, not 81"):
        sent_nbytes(code, code.layout((10,)), payload)


def test_of_a_fixed_size_everything_is_sent():
    code = TopK(ratio=0.5)
    assert sent_nbytes(code, code.layout((10,)), code.compress(gaussian(10))) == code.layout((10,)).nbytes


@pytest.mark.parametrize("name", ["adaptive_threshold", "sidco", "sketchml"])
def test_a_size_that_the_host_knows_is_not_asked_of_the_device(name):
    """A question to the device is an error where there are no elements."""
    code, shape = registry.build("compressors", name), (60, 100)
    unit = Unit((("w", 6000),), shape, 0, code, registry.build("memory", "residual"))
    part, layout = Part(bare_pieces([unit])), code.layout(shape)
    (size,) = part.sizes([int(code.compress(gaussian(6000).view(shape))[:4].view(torch.int32))])
    (payload,) = part.payloads(torch.empty(part.length([size]), dtype=torch.uint8, device="meta"), [size])
    assert payload[0].tolist() == [size - layout.offsets[-1]]
    assert {field.device.type for field in payload[1:]} == {"meta"}
    with OperationCount("meta") as count:
        code.add_decoded(payload, torch.empty(shape, device="meta"), 0.5)
    assert count.operations > 0
    assert count.synchronisations == 0
