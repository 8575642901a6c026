import pytest
import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.casts.none import Identity
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key


def test_sends_float32_as_it_is():
    x = gaussian(33)
    assert Identity().compress(x).numpy().tobytes() == x.numpy().tobytes()


def test_feedback_leaves_nothing():
    grad, residual = gaussian(20), gaussian(20, seed=1)
    total = grad + residual
    payload = (torch.empty(20),)
    Identity().encode_feedback(grad, residual, payload, {}, Key())
    assert torch.equal(payload[0], total)
    assert not residual.any()


def test_never_pays():
    assert not capabilities.pays_for(Identity(), (1000,))


def test_takes_no_parameters():
    with pytest.raises(ConfigError, match="Identity has no parameter 'ratio': it takes no parameters"):
        registry.build("compressors", "none", {"ratio": 0.1})
