"""Methods whose payloads vary in size, and memories of several tensors, between real ranks."""

import pytest
import torch

from gradwire.compressors.sparse.dgc import DGC
from gradwire.contrib.compressors.sketches.sketchml import SketchML
from gradwire.contrib.compressors.sparse.adaptive_sparse import AdaptiveSparse
from gradwire.contrib.compressors.sparse.adaptive_threshold import AdaptiveThreshold
from gradwire.contrib.compressors.sparse.sidco import SIDCo
from gradwire.contrib.compressors.sparse.variance import Variance
from gradwire.testing.processes import run_ranks
from tests.strategies.methods import run_method

WORLD = 2
METHODS = [AdaptiveSparse(), AdaptiveThreshold(), DGC(ratio=0.02), SIDCo(ratio=0.05), SketchML(), Variance()]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_ranks_agree_and_a_bad_step_is_taken_back(method):
    """Three steps, of which the second is spoilt on rank 1."""
    spoilt = run_ranks(WORLD, run_method, method, None, "allgather", 3, 1)
    for step in range(3):
        outputs = [result["outputs"][step] for result in spoilt]
        assert torch.equal(outputs[0].nan_to_num(7.0), outputs[1].nan_to_num(7.0))
    assert bool(spoilt[0]["outputs"][1][: 40 * 33].isnan().all())
    assert bool(spoilt[0]["outputs"][2].isfinite().all())
    for result in spoilt:
        before, after = result["kept"][0], result["kept"][1]
        # The bias travels dense, arrives, and is applied: dgc's momentum of it has moved with it.
        lasting = [name for name in before if name.split("/")[0] not in ("undo", "sent") and "bias" not in name]
        assert all(torch.equal(before[name], after[name]) for name in lasting)


@pytest.mark.parametrize("memory", [None, "none"])
def test_an_unbiased_method_keeps_nothing(memory):
    """Unbiased, so that no residual is kept: nothing is left on a rank."""
    for result in run_ranks(WORLD, run_method, AdaptiveSparse(), memory, "allgather", 1):
        assert result["kept"][0] == {}


@pytest.mark.parametrize("method", [DGC(ratio=0.02)])
def test_a_fixed_size_is_cut_into_shards(method):
    results = run_ranks(WORLD, run_method, method, None, "two_phase", 3)
    assert torch.equal(results[0]["outputs"][2], results[1]["outputs"][2])
    assert bool(results[0]["outputs"][2].isfinite().all())
