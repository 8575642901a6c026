"""A memory in codes, wherever a residual goes: other buckets, other scales, back, into a checkpoint, to other ranks."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor

from gradwire.compressors.casts.fp8 import FP8
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.engine.checkpoint import merge_states, resized, state_of
from gradwire.engine.exchange import Exchange
from gradwire.engine.part import Piece, Unit
from gradwire.engine.plan import grouped
from gradwire.engine.policy import Policy
from gradwire.engine.residual_store import ResidualStore
from gradwire.engine.shards import Sharded
from gradwire.errors import ConfigError
from gradwire.frontends.resharding import of_shard, recut, repadded
from gradwire.kernels.stored import read, stored_like, write
from gradwire.memory.averaged_error import AveragedError
from gradwire.memory.residual import Residual
from tests.contracts.thread_ranks import N, exchange_in_threads

CPU, MEMORY = torch.device("cpu"), AveragedError(block=16)
FORM = MEMORY.form


def unit(*members: tuple[str, int], memory: object = MEMORY) -> Unit:
    return Unit(members, (sum(size for _, size in members),), 0, TwoBit(), memory)


def stored(values: Tensor) -> Tensor:
    tensor = FORM.zeros(values.numel())
    write(tensor, values)
    return tensor


def exchange(**told: object) -> Exchange:
    return Exchange(QSGD(bits=4), memory=MEMORY, policy=Policy(min_numel=0), **told)


def steps(of: Exchange, names: list[list[str]], count: int, begin: int = 0) -> list[Tensor]:
    """The outputs of some steps, of parameters of 40 elements in these buckets, one after the other by name."""
    out = []
    for step in range(begin, begin + count):
        of.begin_step()
        found = {}
        for bucket in names:
            grads = [torch.sin(torch.arange(40.0) * (1 + ord(name)) + step) for name in bucket]
            flat = torch.cat(grads)
            of.run(flat, [(name, (40,)) for name in bucket])
            found |= dict(zip(bucket, torch.split(flat, 40), strict=True))
        out.append(torch.cat([found[name] for name in sorted(found)]))
    return out


def test_codes_move_with_the_name_bit_for_bit() -> None:
    residuals = ResidualStore(2, CPU, 0)
    flat = residuals.keep_all([unit(("a", 32), ("b", 20))])[0]["residual"]
    write(flat, torch.randn(52))
    before = {name: residuals.worker["residual"][name].clone() for name in "ab"}
    residuals.keep_all([unit(("b", 20))])
    residuals.keep_all([unit(("c", 48), ("a", 32))])
    assert all(torch.equal(residuals.worker["residual"][name], before[name]) for name in "ab")


def test_rebuilt_buckets_change_no_bit_of_what_comes_out() -> None:
    whole, rebuilt = exchange(), exchange()
    wanted = steps(whole, [["a", "b", "c"]], 4)
    found = steps(rebuilt, [["a", "b", "c"]], 2) + steps(rebuilt, [["c"], ["b", "a"]], 2, 2)
    # Random rounding is keyed by the parameter, so nothing depends on the bucket.
    assert all(map(torch.equal, found, wanted))


def test_neighbours_are_joined_where_their_blocks_are_whole() -> None:
    params, method = [("a", (64,)), ("b", (40,)), ("c", (32,))], TwoBit()
    for memory, sizes in ((MEMORY, [104, 32]), (Residual(), [136])):
        units, *_ = grouped(params, lambda _: method, Policy(min_numel=0), lambda _, memory=memory: memory)
        assert [each.numel for each in units] == sizes


def test_what_a_unit_kept_as_numbers_becomes_codes_and_numbers_again() -> None:
    residuals = ResidualStore(2, CPU, 0)
    x = torch.randn(40)
    residuals.keep_all([unit(("a", 40), memory=Residual())])[0]["residual"].copy_(x)
    codes = residuals.keep_all([unit(("a", 40))])[0]["residual"]
    assert torch.equal(codes, stored(x))
    assert torch.equal(residuals.keep_all([unit(("a", 40), memory=Residual())])[0]["residual"], read(stored(x), 40))


def test_a_retired_shard_returns_its_share_to_codes() -> None:
    residuals = ResidualStore(4, CPU, 0)
    whole = unit(("a", 32), ("b", 32))
    worker = residuals.keep_all([whole])[0]["residual"]
    write(worker, torch.ones(64))
    residuals.servers([(Piece(whole, MEMORY, (32,), lo=0, start=16), ("residual",))])[0]["residual"].copy_(
        torch.arange(32.0)
    )
    residuals.retire(["a", "b"])
    expected = torch.ones(64)
    expected[16:48] += 4 * torch.arange(32.0)
    torch.testing.assert_close(read(worker), expected, rtol=0, atol=float(expected.max()) / 250)


def test_scaling_changes_scales_alone() -> None:
    residuals = ResidualStore(2, CPU, 0)
    worker = residuals.keep_all([unit(("a", 40))])[0]["residual"]
    write(worker, torch.randn(40))
    codes, before = worker[:, :16].clone(), read(worker, 40)
    residuals.scale(0.5)
    assert torch.equal(read(worker, 40), 0.5 * before)
    residuals.rescale(8.0, ["a"])
    residuals.rescale(3.0, ["b"])
    assert torch.equal(read(worker, 40), 4 * before)
    assert torch.equal(worker[:, :16], codes)
    assert residuals.norm() == pytest.approx(float(4 * before.norm()), rel=1e-6)


@pytest.mark.parametrize("strategy", ["allgather", "two_phase", "broadcast"])
@pytest.mark.parametrize("code", [QSGD(bits=4, block=32), FP8()], ids=str)
def test_a_step_with_a_nan_leaves_codes_as_they_were(strategy: str, code: object) -> None:
    def gradient(step: int, rank: int) -> Tensor:
        x = torch.randn(N, generator=torch.Generator().manual_seed(7 * step + rank))
        return x.index_fill(0, torch.tensor([500]), float("nan")) if (step, rank) == (1, 1) else x

    ranks = exchange_in_threads(code, 3, 3, gradient, memory=MEMORY, strategy=strategy)
    for rank in ranks:
        first, bad, last = (rank.steps[step] for step in range(3))
        for name, tensor in bad.after["residual"].items():
            assert torch.equal(tensor, first.after["residual"][name])
        assert bool(bad.out.isnan().any())
        assert bool(last.out.isfinite().all())


def test_a_skipped_step_is_taken_back_completely() -> None:
    of = exchange()
    of.rollback.follow_skips(True)
    steps(of, [["a"], ["b"]], 2)
    before = {name: tensor.clone() for name, tensor in of.residuals.worker["residual"].items()}
    of.begin_step()
    of.run(torch.randn(40), [("a", (40,))])
    assert not torch.equal(of.residuals.worker["residual"]["a"], before["a"])
    of.run(torch.full((40,), float("nan")), [("b", (40,))])
    of.end_step()
    assert all(torch.equal(of.residuals.worker["residual"][name], tensor) for name, tensor in before.items())


def test_a_checkpoint_holds_the_bytes_and_goes_on_with_them() -> None:
    of, again = exchange(), exchange()
    steps(of, [["a", "b"]], 3)
    file = io.BytesIO()
    torch.save(of.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert state["ranks"]["0"]["worker"]["residual"]["a"].dtype == torch.uint8
    again.load_state_dict(state, sizes={"a": 40, "b": 40})
    assert all(map(torch.equal, steps(again, [["a", "b"]], 3, 3), steps(of, [["a", "b"]], 3, 3)))
    with pytest.raises(ConfigError, match=r"state has 'b' of \d+ elements, not the model's: 90 elements"):
        exchange().load_state_dict(state, sizes={"a": 40, "b": 90})


def test_a_state_of_numbers_can_be_loaded_into_codes() -> None:
    plain = Exchange(QSGD(bits=4), memory="residual", policy=Policy(min_numel=0))
    steps(plain, [["a"]], 2)
    of = exchange()
    of.load_state_dict(plain.state_dict(), sizes={"a": 40})
    steps(of, [["a"]], 1, 2)
    assert of.residuals.worker["residual"]["a"].dtype == torch.uint8
    assert of.metrics()["residual_norm"] > 0


def test_another_number_of_ranks_gets_the_mean_of_the_values() -> None:
    kept = [torch.randn(40, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    owned = {"a": {"residual": {"16": torch.ones(8)}}}
    states = [
        state_of(3, rank, 5, {"worker": {"residual": {"a": stored(x)}}, "owned": owned if rank == 1 else {}})
        for rank, x in enumerate(kept)
    ]
    found = resized(merge_states(states), 0, ())["worker"]["residual"]["a"]
    wanted = sum(read(stored(x), 40) for x in kept) / 3
    wanted[16:24] += 1
    assert torch.equal(found, stored_like(found, wanted)) or float((read(found, 40) - wanted).abs().max()) < 0.02
    assert found.shape == FORM.zeros(40).shape


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_shards_of_fsdp_begin_blocks_of_their_own_and_are_cut_anew(after: int) -> None:
    before, x = Sharded("w", (7, 6), 2), torch.randn(42)
    tensor = before.stored(before.pad(x, before.world), FORM)
    assert tensor.shape == (2 * 2, 20)  # 24 elements for each rank: two blocks.
    assert torch.equal(before.taken(tensor)[:16], read(stored(x[:16])))
    state = state_of(2, 0, 3, {"worker": {"residual": {"w": tensor}}})
    cuts = {"w": Sharded("w", (7, 6), after)}
    found = repadded(state, cuts)["ranks"]["0"]["worker"]["residual"]["w"]
    flat = cuts["w"].taken(found)
    assert flat.numel() == cuts["w"].padded
    torch.testing.assert_close(flat[:42], x, rtol=0, atol=float(x.abs().max()) / 120)
    assert not flat[42:].any()


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_shards_between_replicas_are_cut_anew(after: int) -> None:
    before, x = Sharded("w", (7, 6), 2), torch.randn(42)
    shards = before.pad(x, before.world).view(2, -1)
    kept = [state_of(1, 0, 3, {"worker": {"residual": {"w": stored(each)}}}) for each in shards]
    state = merge_states(of_shard(each, shard, 2) for shard, each in enumerate(kept))
    cuts = {"w": Sharded("w", (7, 6), after)}
    states = [recut(state, shard, after, cuts, "reshard") for shard in range(after)]
    flat = torch.cat([read(each["ranks"]["0"]["worker"]["residual"]["w"], cuts["w"].chunk) for each in states])
    torch.testing.assert_close(flat[:42], x, rtol=0, atol=float(x.abs().max()) / 120)
    assert not flat[42:].any()
