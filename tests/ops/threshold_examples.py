"""Valid arguments for the operations of thresholds."""

from collections.abc import Callable
from typing import Any

import torch

from tests.ops.example_tensors import RANKS, N, codes, floats, status

THRESHOLDS: dict[str, Callable[[], dict[str, Any]]] = {
    "auto_threshold": lambda: {
        "x": floats(),
        "threshold": torch.empty(1),
        "level": torch.empty(1),
        "advice": torch.zeros(2),
        "agreed": torch.ones(2),
        "turn": torch.zeros(1, dtype=torch.int64),
        "target": 0.1,
        "residual": floats(),
    },
    "threshold_add_decoded": lambda: {"streams": codes(RANKS, 8 + 4 * N), "out": floats(), "scale": 0.5},
    "threshold_encode": lambda: {
        "x": floats(),
        "used": status(),
        "stream": codes(8 + 4 * N),
        "threshold": 0.5,
        "level": torch.ones(1),
    },
    "threshold_encode_feedback": lambda: {
        "grad": floats(),
        "residual": floats(),
        "used": status(),
        "stream": codes(8 + 4 * N),
        "threshold": 0.5,
        "status": status(),
        "level": torch.ones(1),
    },
}
