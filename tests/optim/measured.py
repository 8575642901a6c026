"""The table of ``docs/optimizers.md``: ``python -m tests.optim.measured`` trains its rows and prints them."""

from __future__ import annotations

from typing import Any

from gradwire.testing.processes import run_ranks
from tests.optim.jobs import adamw, model_of, sgd, train, train_dense

STEPS, WORLD = 160, 2

ROWS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("onebit_adam", {"freeze_step": 40}),
    ("onebit_adam", {"freeze_step": 40, "compressor": "efsignsgd", "block": 64}),
    (
        "zeroone_adam",
        {"var_freeze_step": 60, "var_update_scaler": 8, "local_step_scaler": 30, "local_step_clipper": 4},
    ),
    ("diloco", {"compressor": "qsgd", "bits": 4, "memory": "residual", "every": 10, "momentum": 0.5}),
    ("diloco", {"compressor": "efsignsgd", "every": 10, "momentum": 0.5}),
    ("qsparse_local", {"compressor": "topk", "ratio": 0.05, "every": 4}),
    ("compressed_step", {"compressor": "topk", "ratio": 0.05}),
    ("compressed_step", {"compressor": "topk", "ratio": 0.05, "late": True}),
    ("compressed_step", {"compressor": "topk", "ratio": 0.05, "every": 4}),
)
"""The optimizers and settings in the order of the table."""


def main() -> None:
    """Print a row for each optimizer: its settings, the loss on other data, and the share of bytes that it sent."""
    for make in (adamw, sgd):
        print(f"{make.__name__}: loss {run_ranks(WORLD, train_dense, make, STEPS, timeout=600.0)[0]['loss']:.3f}")
    dense = 4 * STEPS * sum(param.numel() for param in model_of().parameters())
    for kind, options in ROWS:
        seen = run_ranks(WORLD, train, kind, STEPS, {"min_numel": 128, **options}, timeout=600.0)[0]
        share = seen["metrics"]["bytes_sent"] / dense
        print(f"{kind} {options}: loss {seen['loss']:.3f}, {100 * share:.2g} % of the bytes", flush=True)


if __name__ == "__main__":
    main()
