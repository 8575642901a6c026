"""Checks that the tests of the methods with random rounding share."""

import torch

from gradwire.compressors.base import Compressor
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key


def decoded(code: Compressor, x: torch.Tensor, key: Key | None = None) -> torch.Tensor:
    return code.decompress(code.compress(x, key=key), x.shape)


def relative_error(code: Compressor, x: torch.Tensor, draws: int) -> float:
    """E|C(x) - x|^2 / |x|^2 over the steps of a key."""
    errors = torch.stack([decoded(code, x, Key(step=step)) - x for step in range(draws)])
    return float(errors.double().square().sum(1).mean() / x.double().square().sum())


def memory_after(code: Compressor, steps: int, n: int) -> float:
    """Rms of the residual when normal gradients are fed with feedback."""
    residual, layout = torch.zeros(n), code.layout((n,))
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    for step in range(steps):
        code.encode_feedback(gaussian(n, seed=step), residual, payload, {}, Key(step=step))
    return float(residual.double().square().mean().sqrt())
