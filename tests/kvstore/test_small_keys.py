"""Many small keys in one message: each stays a push of a key and a step that counts once."""

import numpy as np
import pytest
import torch

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.errors import ConfigError
from gradwire.kvstore.protocol.messages import MAX_ITEMS, pack
from gradwire.kvstore.protocol.small_keys import MAX_BATCH, MAX_NAME, SMALL, UnitBatches, is_small, offsets, packed
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.worker.connection import ScatterSink
from tests.kvstore.group import run_workers
from tests.kvstore.jobs import many_keys
from tests.kvstore.talk import ask, compressed, hello, init, laid_out, messages, ops, pull, pull_units, push, push_units

SIZES = {"a": 3, "b": 1, "c": 8}


def pair(**rules):
    core = ServerCore(Rules(workers=2, **rules))
    peers = [hello(core, rank) for rank in range(2)]
    for peer in peers:
        for seq, (key, size) in enumerate(SIZES.items()):
            init(core, peer, 1 + seq, key, torch.zeros(size))
    return core, *peers


def pushes(core, peer, seq, values, step=1, config=0):
    return push_units(core, peer, seq, [(key, step, value) for key, value in values.items()], config)


def pulls(core, peer, seq, step, keys=tuple(SIZES)):
    return pull_units(core, peer, seq, [(key, step) for key in keys])


def grads(scale):
    return {key: torch.arange(1.0, size + 1) * scale for key, size in SIZES.items()}


def received(reply, keys=tuple(SIZES)):
    """The values that one answer has."""
    _, op, _, raw = reply
    assert op == "value"
    outs = {key: torch.empty(SIZES[key]) for key in keys}
    starts, nbytes = offsets([out.nbytes for out in outs.values()])
    assert nbytes == len(raw)
    blocks = [(start, out.view(torch.uint8).numpy()) for start, out in zip(starts, outs.values(), strict=True)]
    ScatterSink(blocks, nbytes).write(0, np.frombuffer(raw, np.uint8))
    return outs


def same(values, wanted):
    return values.keys() == wanted.keys() and all(torch.equal(values[key], wanted[key]) for key in wanted)


def test_a_pull_is_answered_when_the_last_of_its_keys_is_there():
    core, a, b = pair()
    assert ops(pushes(core, a, 4, grads(1))) == ["done"]
    assert pulls(core, a, 5, 1) == []
    assert ops(push(core, b, 4, "a", 1, grads(2)["a"])) == ["done"]
    replies = messages(pushes(core, b, 5, {key: grads(2)[key] for key in "bc"}))
    assert [op for _, op, *_ in replies] == ["done", "value"]
    assert same(received(replies[1]), grads(3))
    assert same(received(messages(pulls(core, b, 6, 1))[0]), grads(3))
    assert core.counters.steps == 3


def test_a_batch_that_comes_again_counts_once_key_by_key():
    core, a, b = pair()
    push(core, a, 4, "b", 1, grads(1)["b"])
    for _ in range(3):
        assert ops(pushes(core, a, 5, grads(1))) == ["done"]
    pushes(core, b, 5, grads(1))
    pushes(core, b, 5, grads(1))
    assert same(received(messages(pulls(core, a, 6, 1))[0]), grads(2))
    assert core.counters.steps == 3
    assert core.counters.repeated == 1 + 2 * 3 + 3


def test_each_pull_gets_the_newest_values_and_not_those_made_for_another():
    core, a, b = pair()
    for step in (1, 2, 3):
        for peer in (a, b):
            pushes(core, peer, 10 * step, grads(step), step)
        first, second = (messages(pulls(core, peer, 10 * step + 1, step))[0] for peer in (a, b))
        assert same(received(first), grads(2 * step))
        assert same(received(second), grads(2 * step))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda items: items.__setitem__(2, ["c", 1, 28, -1]), "a push of key 'c' has 28 bytes"),
        (lambda items: items.__setitem__(2, ["z", 1, 32, -1]), "key 'z' must be initialised"),
        (lambda items: items.__setitem__(2, ["c", 1000, 32, -1]), "256 steps ahead"),
        (lambda items: items.append(["a", 2, 12, -1]), "does not have 1 pieces|has 56 bytes, not 68"),
        (lambda items: items.clear(), "'push' has a bad items"),
        (lambda items: items[0].append(1), "'push' has a bad items"),
        (lambda items: items.__setitem__(0, ["a", -1, 12, -1]), "'push' has a bad items"),
        (lambda items: items.extend([["a", 1, 12, -1]] * MAX_ITEMS), "'push' has a bad items"),
        (lambda items: items.__setitem__(0, ["a", 1, 2**50, -1]), "'push' has a bad items"),
    ],
)
def test_what_is_wrong_with_one_key_is_refused_before_any_counts(spoil, text):
    core, a, _ = pair()
    items = [[key, 1, grad.nbytes, -1] for key, grad in grads(1).items()]
    spoil(items)
    data = laid_out(list(grads(1).values()))
    ((_, op, fields, _),) = messages(ask(core, a, "push", 4, data, items=items, config=0, optimizer=0))
    assert op == "error"
    assert any(part in fields["text"] for part in text.split("|")), fields["text"]
    assert not any(entry.pending for entry in core.values.parts.values())


def test_payloads_are_read_as_they_were_made():
    core, a, b = pair()
    code = TwoBit(0.5)
    compressed(core, a, 4, 1, {"type": "2bit", "threshold": 0.5})
    pushes(core, a, 5, {key: code.compress(grad) for key, grad in grads(1).items()}, config=1)
    pushes(core, b, 5, grads(1))
    want = {key: 0.5 + grad for key, grad in grads(1).items()}
    assert same(received(messages(pulls(core, b, 6, 1))[0]), want)


def test_in_async_each_batch_counts_at_once_and_the_bound_holds():
    core = ServerCore(Rules(workers=2, staleness=0))
    a, b = (hello(core, rank, sync=False) for rank in range(2))
    for peer in (a, b):
        for seq, (key, size) in enumerate(SIZES.items()):
            init(core, peer, 1 + seq, key, torch.zeros(size))
    assert pushes(core, a, 5, grads(1)) == []
    replies = messages(pushes(core, b, 5, grads(2)))
    assert sorted((peer, op) for peer, op, *_ in replies) == [(a, "done"), (b, "done")]
    assert same(received(messages(pulls(core, a, 6, 1))[0]), grads(2))


def test_a_dead_worker_ends_the_wait_of_many_keys():
    core, a, _ = pair(dead_after=5.0)
    pushes(core, a, 4, grads(1))
    pulls(core, a, 5, 1)
    core.receive(a, [pack("ping")], 100.0)
    told = messages(core.tick(100.0))
    assert [(peer, op, fields["seq"]) for peer, op, fields, _ in told] == [(a, "error", 5)]


def test_messages_are_sent_when_they_are_full():
    sent = []
    with UnitBatches(lambda server, keys: sent.append((server, keys))) as batches:
        for key in range(80):
            batches.add(key % 2, SMALL, key, small=True)
    assert sorted(key for _, keys in sent for key in keys) == list(range(80))
    assert all(key % 2 == server for server, keys in sent for key in keys)
    assert [len(keys) for _, keys in sent] == [32, 32, 8, 8]


def test_a_large_unit_is_sent_at_once_and_alone():
    sent = []
    with UnitBatches(lambda _, keys: sent.append(keys)) as batches:
        batches.add(0, 8, "a", small=True)
        batches.add(0, 2 * MAX_BATCH, "large", small=False)
        assert sent == [["large"]]
        batches.add(0, 8, "b", small=True)
    assert sent == [["large"], ["a", "b"]]


def test_what_was_added_before_an_error_is_sent():
    sent = []

    def refused():
        with UnitBatches(lambda _, keys: sent.append(keys)) as batches:
            batches.add(0, 8, "a", small=True)
            raise ConfigError("a later key is refused")

    with pytest.raises(ConfigError, match="a later key"):
        refused()
    assert sent == [["a"]]


def test_between_two_keys_is_nothing_of_what_was_there_before():
    for size in range(1, 9):
        pieces = [torch.full((size,), 255, dtype=torch.uint8) for _ in range(40)]
        spoilt = [torch.full((offsets([size] * 40)[1],), 170, dtype=torch.uint8) for _ in range(8)]
        del spoilt
        data = packed([*pieces, torch.zeros(8, dtype=torch.uint8)])[:-8].view(40, 8)
        assert torch.all(data[:, :size] == 255)
        assert not data[:, size:].any()


def test_only_small_keys_with_short_names_travel_together():
    assert is_small(2**60, SMALL)
    assert not is_small("w", SMALL + 1)
    assert is_small("w" * MAX_NAME, 4)
    assert not is_small("w" * (MAX_NAME + 1), 4)


def test_real_workers_get_what_one_key_at_a_time_gives(tmp_path):
    for told in run_workers(many_keys, 2, 2, folder=tmp_path):
        for name, together, alone in told:
            assert all(map(torch.equal, together, alone)), name


def test_pull_of_one_key_after_a_batch():
    core, a, b = pair()
    for peer in (a, b):
        pushes(core, peer, 4, grads(1))
    assert ops(pull(core, a, 5, "c", 1)) == ["value"]
