"""Valid arguments for every operation, of 32 elements and 2 ranks: what the contract tests start from."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

N, RANKS = 32, 2


def _float() -> Tensor:
    return torch.linspace(-1, 1, N)


def _status() -> Tensor:
    return torch.zeros(1, dtype=torch.int32)


def _codes(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def _sparse() -> dict[str, Tensor]:
    indices, counts = torch.empty(4, dtype=torch.int16), torch.empty(1, dtype=torch.int32)
    return {"values": torch.empty(4), "indices": indices, "counts": counts}


def _sizes() -> Tensor:
    return torch.zeros(1, dtype=torch.int32)


def _table() -> Tensor:
    """Symbol 0 is all there is: 4096 parts of 4096."""
    return torch.tensor([4096] + [0] * 255, dtype=torch.int32)


def _encoding() -> dict[str, Tensor]:
    return {"symbols": _codes(N), "table": _table(), "sizes": _sizes(), "out": _codes(64)}


def _decoding() -> dict[str, Tensor]:
    return {"stream": _codes(32), "sizes": _sizes(), "table": _table(), "symbols": _codes(N), "status": _status()}


def _ternary() -> dict[str, Any]:
    used, lengths = torch.empty(1, dtype=torch.int32), torch.empty(2, dtype=torch.int16)
    return {
        "used": used,
        "scales": torch.empty(2),
        "lengths": lengths,
        "stream": _codes(8),
        "block": 16,
        "sparsity": 1.0,
    }


EXAMPLES: dict[str, Callable[[], dict[str, Any]]] = {
    "cast_add_decoded": lambda: {"payloads": torch.ones(RANKS, N).half(), "out": _float(), "scale": 0.5},
    "cast_encode": lambda: {"x": _float(), "out": torch.empty(N, dtype=torch.bfloat16), "scale": 0.5},
    "moments": lambda: {"x": _float(), "table": torch.empty(4), "centred": True},
    "moments_feedback": lambda: {
        "grad": _float(),
        "residual": _float(),
        "table": torch.empty(4),
        "centred": True,
        "status": _status(),
    },
    "nonfinite": lambda: {"x": _float(), "status": _status()},
    "onebit_add_decoded": lambda: {"codes": _codes(RANKS, 4), "out": _float(), "scale": 0.5},
    "onebit_encode": lambda: {"x": _float(), "codes": _codes(4), "threshold": 0.5},
    "onebit_encode_feedback": lambda: {
        "grad": _float(),
        "residual": _float(),
        "codes": _codes(4),
        "threshold": 0.5,
        "status": _status(),
    },
    "philox": lambda: {"out": torch.empty(N, dtype=torch.int32), "key": 1, "step": 2, "offset": 0},
    "prefix_decode": _decoding,
    "prefix_encode": _encoding,
    "qsgd_add_decoded": lambda: {
        "norms": torch.ones(RANKS, 2),
        "codes": _codes(RANKS, N // 2),
        "out": _float(),
        "bits": 4,
        "block": 16,
        "scale": 0.5,
    },
    "qsgd_encode": lambda: {
        "x": _float(),
        "norms": torch.empty(2),
        "codes": _codes(N // 2),
        "bits": 4,
        "block": 16,
        "norm": "linf",
        "key": 1,
        "step": 2,
    },
    "qsgd_encode_feedback": lambda: {
        "grad": _float(),
        "residual": _float(),
        "norms": torch.empty(2),
        "codes": _codes(N // 2),
        "bits": 4,
        "block": 16,
        "norm": "linf",
        "key": 1,
        "step": 2,
        "status": _status(),
    },
    "rans_decode": _decoding,
    "rans_encode": _encoding,
    "round_encode": lambda: {
        "x": _float(),
        "norm": torch.ones(1),
        "codes": _codes(N // 2),
        "bits": 4,
        "levels": 7,
        "key": 1,
        "step": 2,
    },
    "round_keep": lambda: {
        "residual": _float(),
        "norm": torch.ones(1),
        "codes": _codes(N // 2),
        "bits": 4,
        "levels": 7,
        "shrink": 1.0,
        "key": 1,
        "step": 2,
    },
    "sparse_add_decoded": lambda: {
        "values": torch.ones(RANKS, 4),
        "indices": torch.arange(4, dtype=torch.int16).repeat(RANKS, 1),
        "counts": torch.full((RANKS, 1), 4, dtype=torch.int32),
        "out": _float(),
        "scale": 0.5,
    },
    "swap": lambda: {"a": _float(), "b": _float()},
    "three_lc_add_decoded": lambda: {
        "scales": torch.ones(RANKS, 2),
        "lengths": torch.ones(RANKS, 2, dtype=torch.int16),
        "stream": _codes(RANKS, 8),
        "out": _float(),
        "block": 16,
        "scale": 0.5,
    },
    "three_lc_encode": lambda: {"x": _float(), **_ternary()},
    "three_lc_encode_feedback": lambda: {
        "grad": _float(),
        "residual": _float(),
        **_ternary(),
        "status": _status(),
    },
    "topk_encode": lambda: {"x": _float(), **_sparse()},
    "topk_encode_feedback": lambda: {"grad": _float(), "residual": _float(), **_sparse(), "status": _status()},
    "twobit_add_decoded": lambda: {"codes": _codes(RANKS, 8), "out": _float(), "threshold": 0.5, "scale": 0.5},
    "twobit_encode": lambda: {"x": _float(), "codes": _codes(8), "threshold": 0.5},
    "twobit_encode_feedback": lambda: {
        "grad": _float(),
        "residual": _float(),
        "codes": _codes(8),
        "threshold": 0.5,
        "status": _status(),
    },
}
