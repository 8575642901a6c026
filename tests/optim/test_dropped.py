"""A step that is dropped leaves everything as it was, by whatever strategies its parameters went."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.contrib.compressors.sparse.adaptive_threshold import AdaptiveThreshold
from gradwire.testing.processes import run_ranks
from tests.once import once
from tests.optim.jobs import all_poisoned_in_one

MIXED = {
    "memory": "residual",
    "min_numel": 0,
    "overrides": {"0.weight": AdaptiveThreshold(0.05), "2.weight": PowerSGD(rank=2)},
}
"""Three strategies: payloads that vary in size are gathered, low rank is averaged in rounds, the rest goes as asked."""

WAYS: list[tuple[str, dict[str, Any]]] = [
    ("onebit_adam", {"freeze_step": 2}),
    ("onebit_adam", {"freeze_step": 2, "compressor": "oktopk", "ratio": 0.05, "strategy": "oktopk"}),
    ("zeroone_adam", {"var_freeze_step": 2, "var_update_scaler": 1, "local_step_clipper": 1}),
    ("micro_adam", {"compressor": "topk", "ratio": 0.05, "window": 3}),
    ("diloco", {"every": 3, "compressor": "efsignsgd", "strategy": "two_phase"}),
    ("qsparse_local", {"every": 3, "compressor": "efsignsgd", "strategy": "two_phase"}),
    ("compressed_step", {"every": 3, "compressor": "efsignsgd", "strategy": "two_phase", "decay": "inner"}),
]


SPOILT = ("0.weight", "2.weight", "4.weight")


@once
def results() -> dict[tuple[int, str], tuple[dict[str, Any], ...]]:
    """The reports of the ranks for each of ``WAYS`` and each parameter that is spoilt."""
    cases = [(way, spoilt) for way in range(len(WAYS)) for spoilt in SPOILT]
    jobs = [(WAYS[way][0], 8, spoilt, {**MIXED, **WAYS[way][1]}) for way, spoilt in cases]
    return dict(zip(cases, zip(*run_ranks(2, all_poisoned_in_one, jobs), strict=True), strict=True))


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("way", range(len(WAYS)), ids=[f"{kind}-{len(options)}" for kind, options in WAYS])
def test_what_went_by_other_strategies_is_taken_back_too(way: int, spoilt: str) -> None:
    told = results()[way, spoilt]
    assert all(result["as before"] and result["waits"] and result["finite"] for result in told)
    assert told[0]["end"] == told[1]["end"]
