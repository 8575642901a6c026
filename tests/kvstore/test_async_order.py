"""In async: pushes of one worker that overtake each other all count, and are kept until they are on the disk."""

import pytest
import torch

from gradwire import ConfigError, GroupError
from gradwire.kvstore.protocol.small_keys import MAX_NAME, is_small
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.trainer import Trainer
from tests.kvstore.in_threads import stores
from tests.kvstore.talk import ask, hello, init, messages, pull, push, save


def started(rules):
    core = ServerCore(rules)
    peers = [hello(core, rank, sync=False) for rank in (0, 1)]
    init(core, peers[0], 1, "w")
    ask(core, peers[0], "optimizer", 2, number=1, name="test", numbers={})
    return core, peers


def test_a_push_that_overtakes_another_loses_nothing():
    core, (peer, _) = started(Rules(workers=2))
    push(core, peer, 4, "w", 2, torch.full((4,), 10.0), optimizer=1)
    assert pull(core, peer, 5, "w", 2) == []
    push(core, peer, 3, "w", 1, torch.ones(4), optimizer=1)
    push(core, peer, 4, "w", 2, torch.full((4,), 10.0), optimizer=1)
    assert core.values.parts["w"].value.tolist() == [11.0] * 4


def test_a_worker_keeps_its_own_steps_until_they_are_on_the_disk(tmp_path):
    core, (one, other) = started(Rules(workers=2))
    push(core, one, 3, "w", 1, torch.ones(4), optimizer=1)
    for step in (1, 2, 3):
        push(core, other, 2 + step, "w", step, torch.ones(4), optimizer=1)
    save(core, tmp_path / "file")
    told = messages(push(core, one, 4, "w", 2, torch.ones(4), optimizer=1))
    assert [fields["durable"] for *_, fields in [each[:3] for each in told]] == [[1]]


def test_long_names_are_counted_in_bytes():
    assert is_small("w" * MAX_NAME, 4)
    assert not is_small("\u91cd" * MAX_NAME, 4)


def test_a_store_that_updates_takes_the_numbers_of_a_file(tmp_path):
    def trainer():
        return Trainer(
            [torch.nn.Parameter(torch.zeros(2))], "sgd", {"learning_rate": 0.1}, "local", update_on_kvstore=True
        )

    first, second = trainer(), trainer()
    first.start()
    first.set_learning_rate(0.001)
    first.save_states(tmp_path / "file")
    second.load_states(tmp_path / "file")
    assert second.learning_rate == 0.001


def test_a_worker_that_has_set_no_optimizer_does_not_replace_what_others_trained():
    """The setting of another worker counts, as it does in a sync store."""
    core, (one, other) = started(Rules(workers=2))
    push(core, one, 3, "w", 1, torch.ones(4), optimizer=1)
    push(core, other, 3, "w", 1, torch.ones(4))
    assert core.values.parts["w"].value.tolist() == [2.0] * 4


def test_a_bound_that_only_the_servers_have_holds_pushes_back():
    with stores(2, name="dist_async", rules={"staleness": 1}, timeout=3.0) as (fast, slow):
        for store in (fast, slow):
            store.init("w", torch.zeros(2))
        fast.push("w", torch.ones(2))
        fast.push("w", torch.ones(2))
        with pytest.raises(GroupError, match="step 2 of key 'w' waits for worker 1, more than 1 steps behind"):
            fast.push("w", torch.ones(2))
        slow.push("w", torch.ones(2))
        fast.push("w", torch.ones(2))


def test_a_trainer_of_an_async_store_lets_it_have_the_weights():
    with stores(1, name="dist_async") as (store,):
        params = [torch.nn.Parameter(torch.zeros(2))]
        with pytest.raises(ConfigError, match="update_on_kvstore must be True with a store of a type with 'async'"):
            Trainer(params, "sgd", {"learning_rate": 0.1}, store, update_on_kvstore=False)
        trainer = Trainer(params, "sgd", {"learning_rate": 0.1}, store)
        params[0].grad = torch.ones(2)
        trainer.step(1)
        assert trainer.keeps_weights
        assert params[0].tolist() == pytest.approx([-0.1, -0.1])
