"""Mistakes with sharded models: all ranks say what was wrong and what to do, and nothing has been written."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.errors import ConfigError
from gradwire.frontends.fsdp import parameter_groups
from gradwire.testing.processes import run_ranks
from tests.integrations.fsdp_mistakes_jobs import closed, fsdp1, fsdp2, smaller
from tests.once import once

JOBS = {"fsdp1": fsdp1, "fsdp2": fsdp2, "smaller": smaller}
STATE = r"give it another method with state\.change\(\.\.\.\), or close it first with state\.close\(\)"
LINE = "ConfigError: replicate must be a DeviceMesh of one dimension over the ranks that hold the same rows, such as "
ALONE = (
    "ConfigError: model must be one whose gradients FSDP reduces by itself: without set_custom_reduce_scatter .* got "
)
FSDP2 = {
    "shard": r"ConfigError: replicate must be a mesh without the other ranks of the model's mesh, which hold other "
    r"rows, got ranks \[(0, 1|2, 3)\] where the model lies on \[\1\]; give the other dimension .* mesh\['replicate'\]",
    "every rank": r"GroupError: .*replicate must be a mesh without the other ranks .* got ranks \[0, 1, 2, 3\]",
    "other rows": r"GroupError: .*shard \(the ranks of replicate= must hold the same rows\) is [01] on rank [0-3]; ",
    "without this rank": "(Config|Group)Error: .*a mesh (without the other ranks|with the rank that gives it, [23])",
    "a group": LINE + r"mesh\['replicate'\] or DeviceMesh\.from_group\(group, 'cpu'\), got 'ProcessGroup'",
    "two dimensions": LINE + r"mesh\['replicate'\], got 'one of 2 dimensions'",
    "a name": LINE + r"mesh\['replicate'\], got 'replicate'",
    "a flag": LINE + r"mesh\['replicate'\], got True",
    "left out": r"ConfigError: replicate must be mesh\['replicate'\], or False if the replicas are averaged else.* "
    "got None: .* nobody would average over replicate",
    "native hybrid": "ConfigError: replicate must be left out: the mesh of the model has its replicas, got DeviceMesh",
    "native, elsewhere": "ConfigError: replicate must be left out: the mesh of the model has its replicas, got False",
    "replicas alone": r"ConfigError: mesh of .* must be one with shards, .*; gradwire\.wrap_group compresses",
    "hook": ALONE + "'one with the all-reduce hook hook'",
    "strategy": "ConfigError: strategy must be left out, .* only between replicas can it be chosen, got 'two_phase'",
    "memory": r"ConfigError: memory must be one that keeps nothing of the mean .*; with replicate= every memory can be "
    "used, got 'preconditioned'",
    "scatter": ALONE + "'one with the reduce-scatter Theirs'",
    "process_group": "ConfigError: process_group must be left out: the ranks are those of the model's mesh",
    "swapped": "ConfigError: model must be a module after fully_shard, got str; they are the other way round",
    "class": "ConfigError: model must be a module after fully_shard, got the class Linear; give an object of it",
    "plain": "ConfigError: model must be a module after fully_shard, got Sequential; call fully_shard on it first",
    "ddp": r"ConfigError: model must be .* got DistributedDataParallel; .*use gradwire\.compress_ddp",
    "fsdp1": r"ConfigError: model must be .* got FullyShardedDataParallel; .*use gradwire\.compress_fsdp1",
    "two meshes": r"(Config|Group)Error: .*mesh of .* must be that of all parameters, ranks \[",
    "two meshes with replicas": r"(Config|Group)Error: .*mesh of the model must be one for all modules with replicas; "
    r"gradwire\.wrap_group compresses",
    "others' optimizer": "ConfigError: lr_correction must be the optimizer of this model's parameters",
    "one rank": r"GroupError: rank [13] was configured wrongly: .*scaler must be a torch\.amp\.GradScaler or None",
    "one shard": r"GroupError: ranks were configured differently: .*ratio is 0\.2 on rank [02]; 0\.1 on rank [13]",
    "twice": f"ConfigError: .*exchanges already.*{STATE}|ConfigError: .*{STATE}.*exchanges already",
    "twice with replicas": f"ConfigError: .*{STATE}.*exchanges already",
    "compress_ddp": r"ConfigError: .*use gradwire\.compress_fsdp",
    "compress_optimizer": r"ConfigError: .*use gradwire\.compress_fsdp",
    "OneBitAdam": r"ConfigError: .*use gradwire\.compress_fsdp",
}
FSDP1 = {
    "hybrid": "ConfigError: sharding_strategy of root must be FULL_SHARD or SHARD_GRAD_OP, got HYBRID_SHARD: .*"
    r"fully_shard\(.*gradwire\.compress_fsdp\(model, replicate=mesh\['replicate'\]\)",
    "other ranks": r"(Config|Group)Error: .*process_group of \S*2 must be of the model's own ranks \[0, 1, 2, 3\], got",
    "hook": "ConfigError: model must be one without a communication hook, got \"one that has 'mine', and FSDP takes",
    "process_group": "ConfigError: process_group must be left out: the ranks are those that the model is sharded over",
    "swapped": "ConfigError: model must be a FullyShardedDataParallel module, got str; they are the other way round",
    "class": "ConfigError: model must be .* got the class FullyShardedDataParallel; give an object of it",
    "plain": "ConfigError: model must be a FullyShardedDataParallel module, got Sequential; wrap it first",
    "fsdp2": r"ConfigError: model must be .* got FSDPSequential; after fully_shard use gradwire\.compress_fsdp",
    "not the outermost": "ConfigError: model must be the outermost FullyShardedDataParallel module, got 'Sequential'",
    "twice": f"ConfigError: .*{STATE}",
    "half": r"the model is sharded over ranks \[(0, 1|2, 3)\] of 4: nobody averages|$",
}


@once
def told(job: str) -> list[dict[str, Any]]:
    return run_ranks(4, JOBS[job])


@pytest.mark.parametrize(
    ("job", "case"), [(job, case) for job, cases in (("fsdp2", FSDP2), ("fsdp1", FSDP1)) for case in cases]
)
def test_every_rank_says_what_to_do_and_nothing_is_written(job: str, case: str) -> None:
    wanted = {"fsdp2": FSDP2, "fsdp1": FSDP1}[job][case]
    for result in told(job):
        said, untouched = result[case]
        assert re.match(wanted, said), said
        assert untouched


DOUBT = "2 of 4 ranks reduce this model's gradients; .* replicate=False says that it is meant"
SMALLER = {
    "tp": (None, None),
    "pp": (None, None),
    "meant": (None, None),
    "dp": (None, r"ConfigError: replicate must be mesh\['dp'\], or False"),
    "dp_replicate": (None, r"ConfigError: replicate must be mesh\['dp_replicate'\], or False"),
    "outer": (DOUBT, None),
    "None": (DOUBT, None),
}


@pytest.mark.parametrize("name", SMALLER)
def test_a_mesh_of_half_of_the_ranks_is_judged_by_the_names_of_the_rest(name: str) -> None:
    warned, raised = SMALLER[name]
    for rank, result in enumerate(told("smaller")):
        warnings, said = result[name]
        assert re.match(raised or "nothing was raised", said), said
        assert len(warnings) == (1 if warned is not None and rank % 2 == 0 else 0)
        assert all(re.match(warned or "", each) for each in warnings), warnings


def test_after_close_another_state_takes_the_place() -> None:
    for result in run_ranks(4, closed):
        for name in ("replicas", "alone", "fsdp1"):
            assert re.match(r"ConfigError: state of the model must be open when gradients are reduced", result[name])
            assert result[name, "steps"] == 1


def test_another_torch_is_named() -> None:
    """The modules of torch 2.6 have no place for another reduce-scatter."""
    module: Any = SimpleNamespace(_get_fsdp_state=lambda: SimpleNamespace(_fsdp_param_group=None))
    with pytest.raises(ConfigError, match=r"^torch must have an FSDP2 like those of 2\.11 and 2\.13, .* got 2\.\d+"):
        parameter_groups(module)


@pytest.mark.parametrize(("group", "found"), [(None, []), ("group", ["group"])])
def test_the_modules_of_torch_2_11_have_one_group_or_none(group: Any, found: list[Any]) -> None:
    state = SimpleNamespace(_fsdp_param_group=group)
    module: Any = SimpleNamespace(_get_fsdp_state=lambda: state, set_custom_reduce_scatter=None)
    assert parameter_groups(module) == found
