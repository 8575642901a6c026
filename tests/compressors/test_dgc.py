import math
import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.compressors.sparse.dgc import DGC
from gradwire.compressors.sparse.topk import TopK
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from tests.cases import together


def sent(code, x):
    return code.decompress(code.compress(x), x.shape).nonzero().view(-1).tolist()


def test_the_selection_is_that_of_exact_top_k():
    x = gaussian(5000)
    assert torch.equal(
        DGC(0.02).decompress(DGC(0.02).compress(x), x.shape), TopK(0.02).decompress(TopK(0.02).compress(x), x.shape)
    )


@pytest.mark.parametrize(("n", "filled"), [(10_000, 0), (100_000, 20)])
def test_zeros_do_not_select_everything(n, filled):
    """A threshold of 0 from a sample of zeros, with >=, once made all elements of such gradients travel."""
    x = torch.zeros(n)
    x[: filled * 7 : 7] = gaussian(20)[:filled]
    code = DGC(0.001)
    assert code.layout(x.shape).nbytes == 6 * math.ceil(n / 1000) + 4 * math.ceil(n / 65536)
    assert torch.equal(code.decompress(code.compress(x), x.shape), x)


@together
@pytest.mark.parametrize("seed", range(5))
def test_a_tiny_tensor_sends_exactly_one_element(seed):
    assert len(sent(DGC(0.001), gaussian(50, seed))) == 1


def test_the_memory_is_its_own():
    assert DGC.memory == "dgc"
    assert DGC().feedback == "required"
    assert capabilities.delta(DGC(0.25), 100) == 0.25


def test_counts_that_do_not_add_up_are_refused():
    code = DGC(0.1)
    buffer = code.compress(gaussian(100))
    code.layout((100,)).views(buffer)[1].fill_(9)
    with pytest.raises(WireError, match=re.escape("dgc counts must be >= 0 and sum to 10, got [9]")):
        code.decompress(buffer, (100,))


def test_indices_out_of_order_are_refused():
    code = DGC(0.02)
    buffer = code.compress(gaussian(100))
    code.layout((100,)).views(buffer)[2].copy_(torch.tensor([7, 7]))
    with pytest.raises(WireError, match=re.escape("dgc indices must increase and stay below 100, got [7, 7]")):
        code.decompress(buffer, (100,))


@together
@pytest.mark.parametrize("bad", [0.0, -0.1, 1.5, math.nan, True, "0.1"])
def test_bad_ratio(bad):
    with pytest.raises(ConfigError, match=re.escape(f"DGC.ratio must be in (0, 1], got {bad!r}")):
        DGC(ratio=bad)
