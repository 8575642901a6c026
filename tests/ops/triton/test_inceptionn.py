import pytest
import torch

from gradwire.compressors.casts.ops import inceptionn_encode_feedback
from tests.ops.harness import Case, gradient
from tests.ops.test_inceptionn import outputs
from tests.ops.triton.checks import check, sizes


@sizes
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(on, n, watched):
    """Codes, and the tensor itself where these would take more bytes."""
    for scale in (1e-3, 1e3):
        # A stream has the bits of a tensor that does not shrink, and those of a NaN are another processor's own.
        residual = gradient(n, 2, finite=False).nan_to_num(1.0, torch.inf, -torch.inf) * scale
        written = {"grad": gradient(n, 1) * scale, "residual": residual, **outputs(n)}
        status = {"status": torch.tensor([2], dtype=torch.int32)} if watched else {}
        arguments = {"bound": 10} | ({} if watched else {"status": None})
        check(Case(inceptionn_encode_feedback, {}, written | status, arguments), on, n % 3)
