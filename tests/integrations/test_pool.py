"""Many models one after the other, and several at a time: threads, sockets and process groups are bounded."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import ConfigError, GroupError
from gradwire.frontends import setup
from gradwire.frontends.ddp import GradwireState, compress_ddp
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.frontends.process_group import wrap_group
from gradwire.testing.processes import run_ranks
from tests.integrations.jobs import batch, digest, model_of


def _in_use() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def _group(state: Any) -> str:
    return str(state.exchange.channel.group.group_name)


def _step(model: nn.Module, step: int, rank: int) -> None:
    x, y = batch(step, rank)
    nn.functional.cross_entropy(model(x), y).backward()


def _one_after_the_other(rank: int, count: int, how: str) -> tuple[list[tuple[int, int]], int]:
    counted, groups = [], set()
    members = dist.new_group([0, 1]) if how == "sub-group" else None
    if how == "sub-group" and rank == 2:
        return counted, 0
    for step in range(count):
        if how == "optimizer":
            model = model_of()
            state: Any = compress_optimizer(torch.optim.SGD(model.parameters()), model, "twobit")
            _step(model, step, rank)
            state.exchange_gradients()
        else:
            model = DistributedDataParallel(model_of(), process_group=members)
            state = compress_ddp(model, "twobit")
            _step(model, step, rank)
        groups.add(_group(state))
        if how == "close" and rank == 0:
            state.close()
        del model, state
        counted.append(_in_use())
    return counted, len(groups)


@pytest.fixture(scope="module", autouse=True)
def missing() -> Iterator[Future[list[str]]]:
    """Ranks of which one does not come: they wait while the other tests run."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit(run_ranks, 2, _missing)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads where Linux lists them")
@pytest.mark.parametrize(
    ("world", "how", "count"), [(2, "freed", 24), (2, "close", 12), (2, "optimizer", 12), (3, "sub-group", 12)]
)
def test_models_that_are_gone_leave_nothing(world: int, how: str, count: int) -> None:
    for counted, groups in run_ranks(world, _one_after_the_other, count, how)[:2]:
        assert groups <= 2
        threads, files = zip(*counted[2:], strict=True)
        # A model that waits for the collector has a group and a thread for a while: one, not each.
        assert max(threads) - min(threads) <= 5
        assert max(files) - min(files) <= 8


def _several(rank: int, together: bool) -> list[str]:
    """Two models, whose states share nothing, trained in turns or one after the other."""
    compress = {}
    for name in ("first", "second"):
        model = DistributedDataParallel(model_of(seed=len(name)), bucket_cap_mb=0.05)
        compress[name] = (model, compress_ddp(model, "topk" if name == "first" else "qsgd"))
        if not together:
            _train(rank, [compress[name][0]])
            compress[name] = (model, None)
    if together:
        models = [model for model, _ in compress.values()]
        assert len({_group(state) for _, state in compress.values()}) == 2
        _train(rank, models)
    return [digest(model.module) for model, _ in compress.values()]


def _train(rank: int, models: list[nn.Module]) -> None:
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(5):
        losses = []
        for model in models:
            x, y = batch(step, rank)
            losses.append(nn.functional.cross_entropy(model(x), y))
        torch.stack(losses).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def test_several_models_at_a_time_train_as_each_alone() -> None:
    together, alone = (run_ranks(2, _several, how) for how in (True, False))
    assert together[0] == together[1] == alone[0] == alone[1]


def _freed_on_one_rank(rank: int) -> list[str]:
    """Rank 1 keeps the first model longer than rank 0."""
    first = DistributedDataParallel(model_of())
    state: Any = compress_ddp(first, "twobit")
    _step(first, 0, rank)
    names = [_group(state)]
    kept = (first, state) if rank == 1 else None
    del first, state
    gc.collect()
    second = DistributedDataParallel(model_of())
    state = compress_ddp(second, "twobit")
    _step(second, 1, rank)
    names.append(_group(state))
    del kept
    gc.collect()
    third = DistributedDataParallel(model_of())
    state = compress_ddp(third, "twobit")
    _step(third, 2, rank)
    return [*names, _group(state), digest(third.module)]


def test_a_group_that_one_rank_still_holds_is_not_lent() -> None:
    one, other = run_ranks(2, _freed_on_one_rank)
    assert one == other
    assert one[1] != one[0] == one[2]


def _between_groups(rank: int) -> tuple[list[float], list[str]]:
    """The user's own groups, made before, between and after two exchanges of ranks 0 and 1, and destroyed."""

    def sums(group: Any) -> float:
        value = torch.tensor(float(rank + 1))
        if rank in dist.get_process_group_ranks(group):
            dist.all_reduce(value, group=group)
        return value.item()

    limit = timedelta(seconds=60)
    pair, before = dist.new_group([0, 1], timeout=limit), dist.new_group([1, 2], timeout=limit)
    models, names = [], []
    answers = [sums(before) if rank else 0.0]
    for number in range(2):
        if rank < 2:
            models.append(DistributedDataParallel(model_of(), process_group=pair))
            state: Any = compress_ddp(models[-1], "twobit")
            names.append(_group(state))
            _step(models[-1], number, rank)
        between = dist.new_group(timeout=limit)
        answers.append(sums(between))
        names.append(between.group_name)
        dist.destroy_process_group(between)
    if rank > 0 and torch.__version__ >= "2.14":
        # Before, torch counted the groups of each rank for these names, so that ``pair`` alone made them differ.
        answers.append(sums(dist.new_group([1, 2], timeout=limit, use_local_synchronization=True)))
        assert answers.pop() == 5.0
    if rank > 0:
        dist.destroy_process_group(before)
    if rank < 2:
        for model in models:
            _step(model, 2, rank)
    return answers, names


def test_the_users_own_groups_are_made_before_between_and_after_those_of_a_sub_group() -> None:
    """From torch 2.14 on names count the groups that some ranks make alone, and others waited under another name."""
    (first, names), (second, same), (third, theirs) = run_ranks(3, _between_groups)
    assert first == [0.0, 6.0, 6.0]
    assert second == third == [5.0, 6.0, 6.0]
    assert names == same
    assert names[1::2] == theirs
    assert len(set(names)) == 4


def _out_of_step(rank: int) -> tuple[str, str, str]:
    """Rank 0 meets the deadline alone, so its group is spoilt; rank 1 has begun nothing on it."""
    model = DistributedDataParallel(model_of())
    state: Any = GradwireState(model.module, "twobit", timeout=2.0)
    told, name = "", _group(state)
    if rank == 0:
        try:
            state.load_state_dict(state.state_dict())
        except GroupError as error:
            told = str(error)
    dist.barrier()
    state.close()
    state = compress_ddp(model, "twobit")
    _step(model, 0, rank)
    return told, name, _group(state)


def test_a_group_on_which_the_ranks_differ_is_not_lent_again() -> None:
    (told, *_), _ = answers = run_ranks(2, _out_of_step)
    assert "waited timeout=2 s for rank 1 and got no answer" in told
    assert all(name != later for _, name, later in answers)


def _after_close(rank: int) -> list[str]:
    model = DistributedDataParallel(model_of())
    state = compress_ddp(model, "twobit")
    _step(model, 0, rank)
    state.close()
    state.close()
    told = []
    for use in (lambda: _step(model, 1, rank), lambda: state.change("topk")):
        try:
            use()
        except Exception as error:
            told.append(str(error))
    return told


def test_a_closed_state_cannot_disturb_the_group_of_another() -> None:
    for told in run_ranks(2, _after_close):
        assert len(told) == 2
        assert all("state must be open to exchange anything, got one after close()" in text for text in told)


def _missing(rank: int) -> str:
    model = DistributedDataParallel(model_of())
    told = ""
    if rank == 0:
        try:
            compress_ddp(model, "twobit", timeout=1.0)
        except GroupError as error:
            told = str(error)
    dist.barrier()
    return told


def _refused(rank: int) -> list[str]:
    names = []
    for _ in range(3):
        model = DistributedDataParallel(model_of())
        with pytest.raises(ConfigError, match="threshold"):
            compress_ddp(model, "twobit", threshold=-1.0)
        names.append(_group(compress_ddp(model, "twobit")))
    return names


def test_a_bad_option_hands_the_group_back() -> None:
    one, other = run_ranks(2, _refused)
    assert one == other
    assert len(set(one)) == 1


def _replaced(rank: int, folder: str) -> float:
    """Ranks 0 and 1 are a group; then rank 1 is lost, and another process takes its place in a new group."""
    dist.destroy_process_group()
    steps = 0.0
    for life, processes in enumerate([(0, 1), (0, 2)]):
        if rank in processes:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/{life}", rank=processes.index(rank), world_size=2
            )
            model = DistributedDataParallel(model_of())
            state = compress_ddp(model, "twobit", timeout=200.0)
            _step(model, life, rank)
            state.change("topk")
            _step(model, life, rank)
            steps += state.metrics()["steps"]
            dist.destroy_process_group()
    return steps


def test_a_process_that_takes_the_place_of_a_lost_one_is_met(tmp_path: Path) -> None:
    """The others have compared their groups before, and it has not."""
    assert run_ranks(3, _replaced, str(tmp_path)) == [4, 2, 2]


def test_a_rank_that_does_not_come_is_missed_in_time(missing: Future[list[str]]) -> None:
    told, _ = missing.result()
    assert "did not all set up gradwire within 10 s" in told
    assert "1 of 2 came" in told


ASKED = {
    "cpu:gloo,cuda:gloo": ("gloo", "gloo", "gloo"),
    "cpu:gloo,cuda:nccl": ("gloo", "nccl", "nccl"),
    "cuda:nccl,cpu:gloo": ("gloo", "nccl", "nccl"),
    "cuda:nccl": ("gloo", "nccl", "nccl"),
    "cpu:gloo": ("gloo", "nccl", "gloo"),
    "cpu:ours,cuda:ours-nccl": ("gloo", "nccl", "gloo"),
    "gloo": ("gloo", "nccl", "gloo"),
}
"""The backends of an exchange on the CPU, of one on a GPU and of wrap_group, by how torch describes the group."""


def backends(rank: int) -> dict[str | None, tuple[str, ...]]:
    """The backends that are asked for in a group of Gloo, and where torch describes the group in another way."""
    asked: list[str] = []

    def refused(members: Any, backend: str, *_: Any) -> Any:
        asked.append(backend)
        raise GroupError("this is far enough")

    def of(config: str | None) -> tuple[str, ...]:
        asked.clear()
        with ExitStack() as stack:
            stack.enter_context(patch.object(setup, "lease", refused))
            if config is not None:
                # A build without CUDA cannot make a group with NCCL.
                stack.enter_context(patch.object(dist, "get_backend_config", lambda *_: config))
            for kind in ("cpu", "cuda"):
                with pytest.raises(GroupError, match="far enough"):
                    setup.private_group(None, None, torch.device(kind))
            with pytest.raises(GroupError, match="far enough"):
                wrap_group()
        return tuple(asked)

    return {config: of(config) for config in (None, *ASKED)}


def test_an_exchange_takes_the_backend_that_the_group_has_for_the_gradients() -> None:
    """NCCL refuses two ranks on one GPU, and who has one GPU for several ranks takes Gloo."""
    assert run_ranks(1, backends) == [{None: ("gloo", "gloo", "gloo"), **ASKED}]


def unknown(rank: int) -> list[str]:
    """The default group loses its configuration, which torch lacks for groups that were registered by hand."""
    config = dist.distributed_c10d._world.pg_backend_config
    known = config.pop(dist.group.WORLD)
    try:
        told = sorted(setup.backends_of(None))
        model = DistributedDataParallel(nn.Linear(64, 64))
        compress_ddp(model, "bf16").close()
        return told
    finally:
        config[dist.group.WORLD] = known


def test_a_group_that_torch_knows_by_no_configuration_is_exchanged_over_gloo() -> None:
    assert run_ranks(2, unknown) == [[], []]
