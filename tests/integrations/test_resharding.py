"""States of sharded models for other shards: cut anew only where they are whole."""

import pytest
import torch

from gradwire.engine.checkpoint import merge_states, state_of
from gradwire.engine.shards import Sharded
from gradwire.errors import ConfigError
from gradwire.frontends.resharding import of_shard, recut, repadded


def of_two_shards(numel=10):
    """The tensors that one replica keeps of a parameter, in two shards."""
    flat = Sharded("w", (numel,), 2).pad(torch.arange(1.0, numel + 1), 2).view(2, -1)
    kept = [state_of(1, 0, 3, {"worker": {"residual": {"w": each}}}) for each in flat]
    return merge_states(of_shard(state, shard, 2) for shard, state in enumerate(kept))


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 11])
def test_the_elements_are_the_same_on_other_shards(shards):
    cuts = {"w": Sharded("w", (10,), shards)}
    states = [recut(of_two_shards(), shard, shards, cuts, "reshard") for shard in range(shards)]
    flat = torch.cat([state["ranks"]["0"]["worker"]["residual"]["w"] for state in states])
    assert flat[:10].tolist() == list(range(1, 11))
    assert not flat[10:].any()


def test_a_state_with_tensors_missing_is_not_cut_anew():
    state = of_two_shards()
    del state["parts"]["1"]["ranks"]["0"]["worker"]["residual"]
    del state["parts"]["0"]["ranks"]["0"]["worker"]["residual"]
    with pytest.raises(ConfigError, match="state of rank 0 must have its 1 tensors, got 0"):
        recut(state, 0, 1, {"w": Sharded("w", (10,), 1)}, "reshard")


def test_a_state_with_tensors_missing_gets_no_other_padding():
    state = state_of(2, 0, 3, {"worker": {"residual": {"w": torch.ones(10)}}})
    cuts = {"w": Sharded("w", (10,), 3)}
    assert repadded(state, cuts)["ranks"]["0"]["worker"]["residual"]["w"].tolist() == [1.0] * 10 + [0.0] * 2
    state["ranks"]["0"]["worker"] = {}
    with pytest.raises(ConfigError, match="state of rank 0 must have its 1 tensors, got 0"):
        repadded(state, cuts)


def test_shards_of_columns_are_joined_and_cut_anew():
    whole = torch.arange(48.0).view(4, 12)
    before = torch.cat([each.reshape(-1) for each in whole.chunk(3, 1)])
    for shards in (1, 2, 3, 4, 6):
        after = Sharded("w", (4, 12), shards, 1).pad(before, 3)
        assert torch.equal(after, torch.cat([each.reshape(-1) for each in whole.chunk(shards, 1)]))


def test_parts_of_tensor_parallelism_are_kept_apart():
    def place(part, shard):
        flat = Sharded("w", (10,), 2).pad(torch.arange(1.0, 11) + 100 * part, 2).view(2, -1)[shard]
        return of_shard(state_of(1, 0, 3, {"worker": {"residual": {"w": flat}}}), 2 * part + shard, 4, 2)

    state = merge_states(place(part, shard) for part in range(2) for shard in range(2))
    for part in range(2):
        (cut,) = [Sharded("w", (10,), 1)]
        again = recut(state, part, 2, {"w": cut}, "reshard", 2)["ranks"]["0"]["worker"]["residual"]["w"]
        assert again.tolist() == [100 * part + i for i in range(1, 11)]
    with pytest.raises(
        ConfigError, match=r"parts into which tensor parallelism cuts must be 1, as .* got 2 in the state"
    ):
        recut(state, 0, 2, {"w": cut}, "reshard", 1)
    assert recut(state, 0, 2, {"w": cut}, "reset", 1)["ranks"] == {}
