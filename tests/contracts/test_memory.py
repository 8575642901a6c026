"""No step of a compressor allocates memory of the gradient's size."""

import pytest
import torch

from gradwire import kernels, registry
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.testing.inputs import gaussian
from gradwire.testing.memory import check_memory, largest_allocation

NAMES = registry.names("compressors")


@pytest.mark.skipif(not kernels.kernel_info()["loaded"], reason="the torch reference uses temporaries")
@pytest.mark.parametrize("name", NAMES)
def test_a_step_allocates_nothing_of_the_gradients_size(name):
    check_memory(registry.build("compressors", name), gaussian(2**18).view(512, 512))


class Copies(TwoBit):
    def encode(self, x, payload, state, key):
        super().encode(x.clone(), payload, state, key)


def test_a_copy_of_the_gradient_is_noticed():
    with pytest.raises(AssertionError, match=r"a step on 1048576 bytes allocates \d+ at once"):
        check_memory(Copies(), gaussian(2**18))


def test_the_largest_tensor_is_found():
    assert largest_allocation(lambda: (torch.ones(10), torch.ones(3000), torch.ones(20))) == 12000
