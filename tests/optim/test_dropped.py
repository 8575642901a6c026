"""A step that is dropped leaves everything as it was, by whatever strategies its parameters went."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.compressors.adaptive_threshold import AdaptiveThreshold
from gradwire.compressors.powersgd import PowerSGD
from gradwire.testing.processes import run_ranks
from tests.optim.jobs import poisoned_in_one

MIXED = {
    "memory": "residual", "min_numel": 0,
    "overrides": {"0.weight": AdaptiveThreshold(0.05), "2.weight": PowerSGD(rank=2)},
}  # fmt: skip
"""Three strategies: payloads that vary in size are gathered, low rank is averaged in rounds, the rest goes as asked."""

WAYS: list[tuple[str, dict[str, Any]]] = [
    ("onebit_adam", {"freeze_step": 2}),
    ("onebit_adam", {"freeze_step": 2, "compressor": "oktopk", "ratio": 0.05, "strategy": "oktopk"}),
    ("zeroone_adam", {"var_freeze_step": 2, "var_update_scaler": 1, "local_step_clipper": 1}),
    ("diloco", {"every": 3, "compressor": "efsignsgd", "strategy": "two_phase"}),
    ("qsparse_local", {"every": 3, "compressor": "efsignsgd", "strategy": "two_phase"}),
]


@pytest.mark.parametrize("spoilt", ["0.weight", "2.weight", "4.weight"])
@pytest.mark.parametrize(("kind", "options"), WAYS, ids=[f"{kind}-{len(options)}" for kind, options in WAYS])
def test_what_went_by_other_strategies_is_taken_back_too(kind: str, options: dict[str, Any], spoilt: str) -> None:
    results = run_ranks(2, poisoned_in_one, kind, 8, spoilt, {**MIXED, **options})
    assert all(result["as before"] and result["waits"] and result["finite"] for result in results)
    assert results[0]["end"] == results[1]["end"]
