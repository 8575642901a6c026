"""Residuals under their parameters' names, whatever the buckets look like."""

from __future__ import annotations

import torch

from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.engine.part import Piece, Unit
from gradwire.engine.residual_store import ResidualStore
from gradwire.memory.dgc import DGCMemory
from gradwire.memory.ef21 import EF21Memory
from gradwire.memory.residual import Residual

CPU = torch.device("cpu")


def unit(*members: tuple[str, int]) -> Unit:
    return Unit(members, (sum(size for _, size in members),), 0, TwoBit(), Residual())


def test_what_was_kept_moves_with_the_name() -> None:
    residuals = ResidualStore(2, CPU, 0)
    flat = residuals.keep_all([unit(("a", 3), ("b", 2))])[0]["residual"]
    flat.copy_(torch.arange(5.0))
    again = residuals.keep_all([unit(("b", 2), ("c", 1), ("a", 3))])[0]["residual"]
    assert again.tolist() == [3.0, 4.0, 0.0, 0.0, 1.0, 2.0]
    again.fill_(7.0)
    assert residuals.worker["residual"]["a"].tolist() == [7.0] * 3


def test_a_retired_shard_returns_its_share_of_the_mean() -> None:
    residuals = ResidualStore(4, CPU, 0)
    whole = unit(("a", 32), ("b", 32))
    worker = residuals.keep_all([whole])[0]["residual"]
    worker.fill_(1.0)
    piece = Piece(whole, whole.memory, (32,), lo=0, start=16)
    server = residuals.servers([(piece, ("residual",))])[0]["residual"]
    server.copy_(torch.arange(32.0))
    residuals.retire(["a", "b"])
    expected = torch.ones(64)
    expected[16:48] += 4 * torch.arange(32.0)
    assert torch.equal(worker, expected)
    residuals.retire(["a", "b"])
    assert torch.equal(worker, expected), "handed back twice"


def test_what_only_an_owner_has_kept_waits_too_but_not_what_belongs_to_estimates() -> None:
    for memory, waits in ((Residual(), True), (EF21Memory(), False)):
        residuals, whole = ResidualStore(2, CPU, 0), Unit((("a", 32),), (32,), 0, TwoBit(), memory)
        residuals.keep_all([whole])
        server = residuals.servers([(Piece(whole, memory, (16,), lo=0), ("residual",))])[0]["residual"]
        assert not residuals.any_unsent()
        server.fill_(1.0)
        assert residuals.any_unsent() is waits


def test_a_retired_shard_of_estimates_is_taken_out_of_them() -> None:
    residuals = ResidualStore(4, CPU, 0)
    whole = Unit((("a", 32), ("b", 32)), (64,), 0, TwoBit(), EF21Memory())
    local = residuals.keep_all([whole])[0]["local"]
    local.fill_(1.0)
    piece = Piece(whole, whole.memory, (32,), lo=0, start=16)
    residuals.servers([(piece, ("residual",))])[0]["residual"].copy_(torch.arange(32.0))
    residuals.retire(["a", "b"])
    expected = torch.ones(64)
    expected[16:48] -= 4 * torch.arange(32.0)
    assert torch.equal(local, expected)


def test_all_residuals_are_scaled_and_nothing_else() -> None:
    residuals = ResidualStore(2, CPU, 0)
    whole = unit(("a", 32), ("b", 32))
    worker = residuals.keep_all([whole])[0]["residual"].fill_(1.0)
    server = residuals.servers([(Piece(whole, whole.memory, (32,), lo=0, start=16), ("residual",))])[0][
        "residual"
    ].fill_(2.0)
    momentum = residuals.keep_all([Unit((("c", 3),), (3,), 0, TwoBit(), DGCMemory())])[0]["momentum"].fill_(3.0)
    residuals.scale(0.5)
    assert (worker.unique().tolist(), server.unique().tolist(), momentum.unique().tolist()) == ([0.5], [1.0], [3.0])


def test_what_an_owner_keeps_of_estimates_is_not_scaled_with_the_rate() -> None:
    residuals = ResidualStore(2, CPU, 0)
    whole = Unit((("a", 32),), (32,), 0, TwoBit(), EF21Memory())
    local = residuals.keep_all([whole])[0]["local"].fill_(1.0)
    shard = residuals.servers([(Piece(whole, whole.memory, (16,), lo=0, start=16), ("residual",))])[0][
        "residual"
    ].fill_(2.0)
    residuals.scale(0.5)
    assert (local.unique().tolist(), shard.unique().tolist()) == ([1.0], [2.0])
    residuals.rescale(0.5)
    assert (local.unique().tolist(), shard.unique().tolist()) == ([0.5], [1.0])


def test_what_only_takes_a_step_back_is_not_saved() -> None:
    residuals = ResidualStore(2, CPU, 0)
    kept = residuals.keep_all([Unit((("a", 3),), (3,), 0, TwoBit(), DGCMemory())])[0]
    assert sorted(kept) == ["momentum", "residual", "sent", "undo"]
    assert sorted(residuals.state_dict()["worker"]) == ["momentum", "residual"]


def test_a_state_is_made_once_and_again_when_its_shape_changes() -> None:
    residuals = ResidualStore(2, CPU, 0)

    def of(rank: int) -> Unit:
        return Unit((("w", 64),), (8, 8), 0, PowerSGD(rank=rank), Residual())

    first = residuals.remember(of(1))
    first["q"].fill_(5.0)
    assert residuals.remember(of(1))["q"].eq(5.0).all()
    assert residuals.remember(of(2))["q"].numel() == 2 * first["q"].numel()


def test_the_norm_is_over_all_residuals() -> None:
    residuals = ResidualStore(2, CPU, 0)
    assert residuals.norm() == 0.0
    residuals.keep_all([unit(("a", 1))])[0]["residual"].fill_(3.0)
    residuals.keep_all([unit(("b", 1))])[0]["residual"].fill_(4.0)
    assert residuals.norm() == 5.0


def test_a_shard_that_waits_is_saved_beside_one_that_begins_at_the_same_element() -> None:
    residuals, whole = ResidualStore(2, CPU, 0), unit(("a", 32))
    residuals.load_state_dict({"worker": {}, "owned": {"a": {"residual": {"0": torch.ones(32)}}}})
    residuals.servers([(Piece(whole, whole.memory, (16,), lo=0), ("residual",))])[0]["residual"].fill_(2.0)
    assert residuals.state_dict()["owned"]["a"]["residual"]["0"].tolist() == [3.0] * 16 + [1.0] * 16


def test_what_an_exchange_may_change_is_what_these_parameters_keep_and_no_work_space() -> None:
    residuals = ResidualStore(2, CPU, 0)
    residuals.keep_all([Unit((("a", 3),), (3,), 0, TwoBit(), DGCMemory())])
    residuals.keep_all([unit(("b", 2))])
    assert set(residuals.changing(["a", "b", "dense"])) == {
        "worker/residual/a",
        "worker/momentum/a",
        "worker/residual/b",
    }
    assert set(residuals.changing(["b"])) == {"worker/residual/b"}
    assert not residuals.changing(["dense"])
