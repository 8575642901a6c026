"""Each setting of DDP, ``fully_shard``, FSDP1 and torch's optimizers is read, or refused by its name."""

from __future__ import annotations

import re
from typing import Any

from gradwire.testing.processes import run_ranks
from tests.house.torch_settings import FIRST, READ, TABLES, WAYS, settings_of
from tests.integrations import torch_settings_jobs as jobs
from tests.integrations.jobs import STREAMS
from tests.once import once


@once
def told() -> list[dict[str, Any]]:
    return run_ranks(2, _all)


def _all(rank: int) -> dict[str, Any]:
    names = ("ddp", "delayed", "fsdp1", "ignored", "dimensions", "refused", "optimizers")
    return {name: getattr(jobs, name)(rank) for name in names}


def of(marker: str, test: str) -> set[str]:
    """The settings that a test shows to be read, as far as this torch has them."""
    rows, wrapper = TABLES[marker]
    return {name for name, each in rows.items() if (each.verdict, each.test) == (READ, test)} & settings_of(wrapper)


def test_a_setting_of_ddp_ends_where_ddp_alone_ends() -> None:
    for rank in told():
        assert of("settings of DDP", WAYS) <= set(rank["ddp"])
        assert [name for name, same in rank["ddp"].items() if not same] == []


def test_what_ddp_delays_is_not_exchanged() -> None:
    for rank in told():
        assert "second.weight" not in rank["delayed"]["kept"]
        assert "first.weight" in rank["delayed"]["kept"]
        assert rank["delayed"]["sent"] == 4 * (jobs.SIZE**2 + 4 * jobs.SIZE)


def test_a_setting_of_fsdp1_ends_where_fsdp1_alone_ends() -> None:
    for rank in told():
        assert of("settings of FSDP1", FIRST) <= set(rank["fsdp1"])
        assert [name for name, same in rank["fsdp1"].items() if not same] == []


def test_parameters_that_fsdp_ignores_are_nobodys() -> None:
    for rank in told():
        for form, each in rank["ignored"].items():
            assert each == {"own": True, "kept": [], "sent": True}, form


def test_a_mesh_that_names_its_data_parallel_dimensions() -> None:
    for rank in told():
        assert rank["dimensions"]


def test_every_optimizer_steps_on_the_mean() -> None:
    for rank in told():
        assert set(rank["optimizers"]) == set(jobs.optimizer_classes()) - {"LBFGS"}
        assert [name for name, same in rank["optimizers"].items() if not same] == []


LATER = (
    r"optimizer must be one that steps after the backward pass: .*call optimizer\.step\(\), got one that steps in it"
)
REFUSED = {
    "mixed_precision": r"mixed_precision of DistributedDataParallel must be None, .*torch\.autocast",
    "optimizer in backward": LATER,
    "the same after a forward pass": LATER,
    "the same after compress_ddp": LATER,
    "the same in a plain loop": LATER,
    "skip_all_reduce_unused_params": r"skip_all_reduce_unused_params must be False with find_unused_parameters",
    "sparse under fully_shard": r"sparse of 0\.weight must be False under FSDP.*make the embedding without it",
    "sparse under FSDP1": r"sparse of root must be False under FSDP.*make the embedding without it",
    "LBFGS": r"closure must be None: it would compute gradients after the exchange",
}


def test_what_cannot_work_is_refused_by_name() -> None:
    one, other = (rank["refused"] for rank in told())
    assert one == other
    assert set(one) == set(REFUSED) - (set() if STREAMS else jobs.WITH_STREAMS)
    for case, said in one.items():
        assert re.match(f"ConfigError: {REFUSED[case]}", said), (case, said)
