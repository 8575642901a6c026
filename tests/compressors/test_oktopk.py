import math
import re

import pytest
import torch

from gradwire.contrib.compressors.sparse.oktopk import OkTopk
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from tests.cases import together


def test_exactly_k_are_sent_and_nothing_left_is_larger():
    x, code = gaussian(1001), OkTopk(0.02)
    out = code.decompress(code.compress(x), x.shape)
    assert int((out != 0).sum()) == code.count(1001) == 21
    assert torch.equal(out[out != 0], x[out != 0])
    assert float((x - out).abs().amax()) <= float(out[out != 0].abs().amin())


@together
@pytest.mark.parametrize(("n", "k"), [(0, 0), (1, 1), (99, 1), (100, 1), (101, 2), (200, 2)])
def test_how_many_are_sent(n, k):
    assert OkTopk(0.01).count(n) == k


@together
@pytest.mark.parametrize("bad", [0.0, 1.5, math.nan, None])
def test_bad_ratio(bad):
    with pytest.raises(ConfigError, match=re.escape(f"OkTopk.ratio must be in (0, 1], got {bad!r}")):
        OkTopk(ratio=bad)
