"""Residuals under their parameters' names, whatever the buckets look like."""

from __future__ import annotations

import torch

from gradwire.comm._part import Piece, Unit
from gradwire.compressors.powersgd import PowerSGD
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.keeper import Keeper
from gradwire.memory.dgc import DGCMemory
from gradwire.memory.ef21 import EF21
from gradwire.memory.residual import Residual

CPU = torch.device("cpu")


def unit(*members: tuple[str, int]) -> Unit:
    return Unit(members, (sum(size for _, size in members),), 0, TwoBit(), Residual())


def test_what_was_kept_moves_with_the_name() -> None:
    keeper = Keeper(2, CPU, 0)
    flat = keeper.keep(unit(("a", 3), ("b", 2)))["residual"]
    flat.copy_(torch.arange(5.0))
    again = keeper.keep(unit(("b", 2), ("c", 1), ("a", 3)))["residual"]
    assert again.tolist() == [3.0, 4.0, 0.0, 0.0, 1.0, 2.0]
    again.fill_(7.0)
    assert keeper.worker["residual"]["a"].tolist() == [7.0] * 3


def test_a_retired_shard_returns_its_share_of_the_mean() -> None:
    keeper = Keeper(4, CPU, 0)
    whole = unit(("a", 32), ("b", 32))
    worker = keeper.keep(whole)["residual"]
    worker.fill_(1.0)
    piece = Piece(whole, whole.memory, (32,), lo=0, start=16)
    server = keeper.server(piece, ("residual",))["residual"]
    server.copy_(torch.arange(32.0))
    keeper.retire(["a", "b"])
    expected = torch.ones(64)
    expected[16:48] += 4 * torch.arange(32.0)
    assert torch.equal(worker, expected)
    keeper.retire(["a", "b"])
    assert torch.equal(worker, expected), "handed back twice"


def test_a_retired_shard_of_estimates_is_taken_out_of_them() -> None:
    keeper = Keeper(4, CPU, 0)
    whole = Unit((("a", 32), ("b", 32)), (64,), 0, TwoBit(), EF21())
    local = keeper.keep(whole)["local"]
    local.fill_(1.0)
    piece = Piece(whole, whole.memory, (32,), lo=0, start=16)
    keeper.server(piece, ("residual",))["residual"].copy_(torch.arange(32.0))
    keeper.retire(["a", "b"])
    expected = torch.ones(64)
    expected[16:48] -= 4 * torch.arange(32.0)
    assert torch.equal(local, expected)


def test_all_residuals_are_scaled_and_nothing_else() -> None:
    keeper = Keeper(2, CPU, 0)
    whole = unit(("a", 32), ("b", 32))
    worker = keeper.keep(whole)["residual"].fill_(1.0)
    server = keeper.server(Piece(whole, whole.memory, (32,), lo=0, start=16), ("residual",))["residual"].fill_(2.0)
    momentum = keeper.keep(Unit((("c", 3),), (3,), 0, TwoBit(), DGCMemory()))["momentum"].fill_(3.0)
    keeper.scale(0.5)
    assert (worker.unique().tolist(), server.unique().tolist(), momentum.unique().tolist()) == ([0.5], [1.0], [3.0])


def test_what_an_owner_keeps_of_estimates_is_not_scaled_with_the_rate() -> None:
    keeper = Keeper(2, CPU, 0)
    whole = Unit((("a", 32),), (32,), 0, TwoBit(), EF21())
    local = keeper.keep(whole)["local"].fill_(1.0)
    shard = keeper.server(Piece(whole, whole.memory, (16,), lo=0, start=16), ("residual",))["residual"].fill_(2.0)
    keeper.scale(0.5)
    assert (local.unique().tolist(), shard.unique().tolist()) == ([1.0], [2.0])
    keeper.rescale(0.5)
    assert (local.unique().tolist(), shard.unique().tolist()) == ([0.5], [1.0])


def test_what_only_takes_a_step_back_is_not_saved() -> None:
    keeper = Keeper(2, CPU, 0)
    kept = keeper.keep(Unit((("a", 3),), (3,), 0, TwoBit(), DGCMemory()))
    assert sorted(kept) == ["momentum", "residual", "sent", "undo"]
    assert sorted(keeper.state_dict()["worker"]) == ["momentum", "residual"]


def test_a_state_is_made_once_and_again_when_its_shape_changes() -> None:
    keeper = Keeper(2, CPU, 0)

    def of(rank: int) -> Unit:
        return Unit((("w", 64),), (8, 8), 0, PowerSGD(rank=rank), Residual())

    first = keeper.remember(of(1))
    first["q"].fill_(5.0)
    assert keeper.remember(of(1))["q"].eq(5.0).all()
    assert keeper.remember(of(2))["q"].numel() == 2 * first["q"].numel()


def test_the_norm_is_over_all_residuals() -> None:
    keeper = Keeper(2, CPU, 0)
    assert keeper.norm() == 0.0
    keeper.keep(unit(("a", 1)))["residual"].fill_(3.0)
    keeper.keep(unit(("b", 1)))["residual"].fill_(4.0)
    assert keeper.norm() == 5.0


def test_a_shard_that_waits_is_saved_beside_one_that_begins_at_the_same_element() -> None:
    keeper, whole = Keeper(2, CPU, 0), unit(("a", 32))
    keeper.load_state_dict({"worker": {}, "owned": {"a": {"residual": {"0": torch.ones(32)}}}})
    keeper.server(Piece(whole, whole.memory, (16,), lo=0), ("residual",))["residual"].fill_(2.0)
    assert keeper.state_dict()["owned"]["a"]["residual"]["0"].tolist() == [3.0] * 16 + [1.0] * 16


def test_what_an_exchange_may_change_is_what_these_parameters_keep_and_no_work_space() -> None:
    keeper = Keeper(2, CPU, 0)
    keeper.keep(Unit((("a", 3),), (3,), 0, TwoBit(), DGCMemory()))
    keeper.keep(unit(("b", 2)))
    assert set(keeper.changing(["a", "b", "dense"])) == {
        "worker/residual/a", "worker/momentum/a", "worker/residual/b",
    }  # fmt: skip
    assert set(keeper.changing(["b"])) == {"worker/residual/b"}
    assert not keeper.changing(["dense"])
