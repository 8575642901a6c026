"""No encode of a fixed size waits for its device."""

import pytest
import torch

from gradwire import registry
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.testing import sync
from gradwire.testing.inputs import gaussian
from gradwire.testing.sync import check_no_sync, synchronisations
from tests.cases import together
from tests.contracts.test_compressors import FOLDER
from tests.golden import freeze as golden

FIXED = [each for name in registry.names("compressors") for each in golden.variants(FOLDER, name) if each.fixed_size]


@pytest.mark.parametrize("compressor", FIXED, ids=str)
@together
@pytest.mark.parametrize("shape", [(40, 60), (1,), (0,)])
def test_an_encode_of_fixed_size_waits_for_nothing(compressor, shape):
    check_no_sync(compressor, gaussian(torch.Size(shape).numel()).view(shape))


class Asks(TwoBit):
    def encode(self, x, payload, state, key):
        if x.abs().amax() > 0:
            super().encode(x, payload, state, key)


def test_a_question_to_the_device_is_noticed():
    with pytest.raises(AssertionError, match=r"waits for the device: aten::\w+ at test_sync\.py:\d+"):
        check_no_sync(Asks(), gaussian(100))


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.sum().item(),
        lambda x: torch.equal(x, x),
        lambda x: bool(x[0]),
        lambda x: x.unique(),
        lambda x: x.tolist(),
        lambda x: x.long().abs().bincount(),
        lambda x: x.repeat_interleave(x.long().abs()),
        lambda x: torch.tensor([1.0]).to(x),
        lambda x: x.index_put_((x > 0,), torch.ones(())),
    ],
)
def test_each_way_to_wait_is_known(work):
    assert synchronisations(lambda: work(gaussian(10)))
    assert not synchronisations(lambda: gaussian(10).mul_(2).where(torch.ones(10) > 0, 0.0))


def test_the_old_name_says_what_it_is_now():
    with pytest.warns(DeprecationWarning, match=r"testing\.sync\.waits is synchronisations now"):
        assert sync.waits is synchronisations
    with pytest.raises(AttributeError, match="has no attribute 'wait'"):
        _ = sync.wait
