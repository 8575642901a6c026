"""Valid arguments for every operation, of 32 elements and 2 ranks: what the contract tests start from."""

from collections.abc import Callable
from typing import Any

import torch

from tests.ops import mark_examples
from tests.ops.derived import examples
from tests.ops.example_tensors import RANKS
from tests.ops.example_tensors import floats as _float
from tests.ops.found import OPS


def _parts() -> dict[str, Any]:
    """What annotations do not say: how the sizes of several lists belong together."""
    return {
        "values": [torch.ones(4), torch.tensor([5], dtype=torch.uint8)],
        "indices": [torch.arange(4, dtype=torch.int16)] * RANKS,
        "counts": [torch.full((1,), 4, dtype=torch.int32)] * RANKS,
        "levels": [torch.empty(0), torch.tensor([1.0, -1.0])],
        "out": _float(),
        "scale": 0.5,
    }


EXAMPLES: dict[str, Callable[[], dict[str, Any]]] = (
    {} | mark_examples.EXAMPLES | examples(OPS) | {"parts_add_decoded": _parts}
)
