"""A method that follows the gradient's scale does so at any scale: C(a x) = a C(x), bit for bit for powers of two.

Squares and products of tiny or huge elements vanish or overflow in float32, where the elements themselves do not.
"""

from __future__ import annotations

import pytest
import torch

from gradwire import registry
from gradwire.compressors.base import Compressor
from gradwire.compressors.levels.nuqsgd import NUQSGD
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.ternary.terngrad import TernGrad
from gradwire.compressors.transforms.thc import THC
from gradwire.testing import golden
from gradwire.testing._expect import decode, encode
from gradwire.testing.inputs import gaussian
from gradwire.types import Key
from tests.contracts.test_compressors import FOLDER

SCALES = (2.0**-85, 2.0**-60, 2.0**60, 2.0**95)


def follows(code: Compressor) -> bool:
    """Return whether a method has no unit of its own: no fixed threshold, step or bound, and no 16-bit float of narrow
    range."""
    if code.name in ("ef21", "entropy"):
        return follows(code.inner)  # type: ignore[attr-defined]
    if code.name == "compose":
        return follows(code.outer) and follows(code.inner)  # type: ignore[attr-defined]
    given = code.to_config()
    fixed = any(isinstance(given.get(name), float) for name in ("threshold", "v")) and given.get("scale") != "mean"
    return (
        not fixed and code.name not in ("signsgd", "signum", "inceptionn", "fp16") and given.get("values") != "float16"
    )


FOLLOWING = [code for name in registry.names("compressors") for code in golden.variants(FOLDER, name) if follows(code)]


@pytest.mark.parametrize("code", FOLLOWING, ids=str)
def test_what_arrives_scales_with_the_gradient(code: Compressor) -> None:
    x = gaussian(300, seed=3).view(15, 20) ** 3
    expected = decode(code, encode(code, x, Key(step=2))[1], x)
    slack = 0.0 if code.portable else 1e-5 * float(expected.abs().max())
    for scale in SCALES:
        found = decode(code, encode(code, x * scale, Key(step=2))[1], x) / scale
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=slack, msg=lambda text, s=scale: f"{s}: {text}")


@pytest.mark.parametrize(
    "code",
    [QSGD(norm="l2"), QSGD(norm="l2", block=None), NUQSGD(), TernGrad(), THC(), PowerSGD(rank=2, iterations=2)],
    ids=lambda code: code.name,
)
def test_feedback_loses_nothing_at_any_scale(code: Compressor) -> None:
    x = gaussian(5000, seed=4).view(50, 100)
    for scale in SCALES:
        grad, residual, status = x * scale, torch.zeros_like(x), torch.zeros(1, dtype=torch.int32)
        buffer = torch.zeros(code.layout(x.shape).nbytes, dtype=torch.uint8)
        payload = code.layout(x.shape).views(buffer)
        code.encode_feedback(grad, residual, payload, code.init_state(x.shape, Key()), Key(step=2), status)
        sent = decode(code, payload, x)
        assert status.item() == 0
        assert bool(sent.any())
        torch.testing.assert_close(sent / scale + residual / scale, x, rtol=0, atol=1e-4)
