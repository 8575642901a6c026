"""Features of torch that some tests use and the oldest torch does not have."""

import pytest
from torch.distributed.fsdp import FSDPModule

NEWER_FSDP = pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"),
    reason="FSDP2 of this torch has no unused parameters, no second mesh, and no layer that is called several times",
)
