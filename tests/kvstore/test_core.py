"""The server's rules, message by message."""

import pytest
import torch

from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.kvstore.protocol.compression import OFF, parse
from gradwire.kvstore.protocol.messages import VERSION, pack
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from tests.kvstore.talk import ask, compressed, hello, init, messages, ops, pair, pull, push, values

PLAIN = {"config": 0, "optimizer": 0}
ONES = torch.ones(4)


def test_init_waits_for_rank_0_and_takes_its_value():
    core = ServerCore(Rules(workers=2))
    a, b = hello(core, 0), hello(core, 1)
    assert init(core, b, 1, "w", 5 * ONES) == []
    assert [peer for peer, *_ in messages(init(core, a, 1, "w", 3 * ONES))] == [a, b]
    assert values(pull(core, b, 2, "w", 0)) == {b: [3.0] * 4}


def test_a_worker_that_asked_before_rank_0_and_has_another_form_is_told():
    core = ServerCore(Rules(workers=2))
    a, b = hello(core, 0), hello(core, 1)
    assert init(core, b, 1, "w", torch.zeros(5)) == []
    told = {peer: (op, fields) for peer, op, fields, _ in messages(init(core, a, 1, "w"))}
    assert told[a][0] == "done"
    assert told[b][1]["kind"] == "config"
    assert "another worker has torch.float32 of shape (5,)" in told[b][1]["text"]


def test_a_step_counts_when_all_pushes_are_in_and_pulls_wait_for_it():
    core, a, b = pair()
    assert ops(push(core, a, 2, "w", 1, ONES)) == ["done"]
    assert pull(core, a, 3, "w", 1) == []
    replies = push(core, b, 2, "w", 1, 2 * ONES)
    assert values(replies) == {a: [3.0] * 4}
    assert values(pull(core, b, 3, "w", 1)) == {b: [3.0] * 4}


def test_a_push_that_comes_again_counts_once():
    core, a, b = pair()
    for _ in range(3):
        assert ops(push(core, a, 2, "w", 1, ONES)) == ["done"]
    push(core, b, 2, "w", 1, ONES)
    for _ in range(3):
        assert ops(push(core, a, 2, "w", 1, ONES)) == ["done"]
    assert values(pull(core, a, 3, "w", 1)) == {a: [2.0] * 4}
    assert core.counters.repeated == 5


def test_a_fast_worker_may_be_steps_ahead():
    core, a, b = pair()
    for step in (1, 2, 3):
        push(core, a, 1 + step, "w", step, step * ONES)
    for step in (1, 2, 3):
        push(core, b, 1 + step, "w", step, ONES)
        assert values(pull(core, b, 10 + step, "w", step)) == {b: [step + 1.0] * 4}


def test_pushes_of_a_key_may_overtake_each_other():
    core, a, b = pair()
    for step in (2, 1):
        push(core, a, 1 + step, "w", step, step * ONES)
        push(core, b, 1 + step, "w", step, step * ONES)
    assert values(pull(core, a, 9, "w", 2)) == {a: [4.0] * 4}
    assert values(pull(core, b, 9, "w", 1)) == {b: [4.0] * 4}


def test_a_worker_cannot_run_away():
    core, a, _ = pair()
    (reply,) = messages(push(core, a, 2, "w", 300, ONES))
    assert (reply[1], reply[2]["kind"]) == ("error", "config")
    assert "256 steps ahead" in reply[2]["text"]


def test_the_sum_is_in_the_order_of_ranks_whoever_is_first():
    big, small = torch.full((4,), 1e8), torch.full((4,), 1.0)
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        core = ServerCore(Rules(workers=3))
        peers = [hello(core, rank, world=3) for rank in range(3)]
        for peer in peers:
            init(core, peer, 1, "w")
        for rank in order:
            push(core, peers[rank], 2, "w", 1, [big, -big, small][rank])
        assert values(pull(core, peers[0], 3, "w", 1)) == {peers[0]: [1.0] * 4}


def test_workers_may_compress_differently_and_each_payload_is_read_as_it_was_made():
    core, a, b = pair()
    compressed(core, a, 2, 1, {"type": "2bit", "threshold": 0.5})
    compressed(core, b, 2, 1, {"type": "topk", "ratio": 0.25})
    push(core, a, 3, "w", 1, TwoBit(0.5).compress(torch.tensor([0.6, -0.7, 0.1, 0.0])), config=1)
    push(core, b, 3, "w", 1, TopK(0.25).compress(torch.tensor([0.0, 0.0, 5.0, 1.0])), config=1)
    assert values(pull(core, a, 4, "w", 1)) == {a: [0.5, -0.5, 5.0, 0.0]}


def test_rows():
    core = ServerCore(Rules(workers=1))
    a = hello(core, 0, world=1)
    init(core, a, 1, "e", torch.zeros(3, 2))
    rows = torch.tensor([2, 0])
    data = torch.cat([rows.view(torch.uint8), torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(-1).view(torch.uint8)])
    push(core, a, 2, "e", 1, data, rows=2)
    assert values(ask(core, a, "rows", 3, torch.tensor([0, 1]), key="e", step=1)) == {a: [3.0, 4.0, 0.0, 0.0]}


def test_the_optimizer_is_the_one_the_pushing_workers_had():
    core, a, b = pair()
    for peer in (a, b):
        ask(core, peer, "optimizer", 2, number=1, name="sgd", numbers={"learning_rate": 1.0, "momentum": 0.5})
    push(core, a, 3, "w", 1, ONES, optimizer=1)
    # Worker 0 already has a new learning rate; step 1 is made with the old one.
    ask(core, a, "optimizer", 4, number=2, name="sgd", numbers={"learning_rate": 0.1, "momentum": 0.5})
    push(core, b, 3, "w", 1, ONES, optimizer=1)
    assert values(pull(core, a, 5, "w", 1)) == {a: [-2.0] * 4}
    ask(core, b, "optimizer", 4, number=2, name="sgd", numbers={"learning_rate": 0.1, "momentum": 0.5})
    for peer in (a, b):
        push(core, peer, 6, "w", 2, ONES, optimizer=2)
    assert values(pull(core, a, 7, "w", 2)) == {a: [pytest.approx(-2.3)] * 4}


def test_two_workers_with_different_optimizers_are_told():
    core, a, b = pair()
    ask(core, a, "optimizer", 2, number=1, name="sgd", numbers={"learning_rate": 1.0})
    (reply,) = messages(ask(core, b, "optimizer", 2, number=1, name="adam", numbers={}))
    assert reply[2]["kind"] == "config"
    assert "set_optimizer must get the same values" in reply[2]["text"]


def test_a_barrier_waits_for_all():
    core, a, b = pair()
    assert ask(core, a, "barrier", 2, number=1) == []
    assert [peer for peer, *_ in messages(ask(core, b, "barrier", 2, number=1))] == [b, a]


def test_a_worker_that_comes_again_is_at_the_barrier_the_others_wait_at():
    core, a, b = pair()
    for number in (1, 2):
        for peer in (a, b):
            ask(core, peer, "barrier", 10 + number, number=number)
    b = hello(core, 1, session=b"another process.")
    assert ask(core, a, "barrier", 13, number=3) == []
    assert [peer for peer, *_ in messages(ask(core, b, "barrier", 1, number=1))] == [b, a]


def test_a_setting_of_the_optimizer_in_every_step_does_not_pile_up():
    core = ServerCore(Rules(workers=1))
    a = hello(core, 0, world=1)
    init(core, a, 1, "w")
    for number in range(1, 2000):
        ask(core, a, "optimizer", 2 * number, number=number, name="sgd", numbers={"lr": 1.0 / number, "momentum": 0.9})
    assert len(core.optimizers.updaters) <= 512
    push(core, a, 5000, "w", 1, ONES, optimizer=1999)
    assert values(pull(core, a, 5001, "w", 1)) == {a: [pytest.approx(-1 / 1999)] * 4}


def test_a_worker_that_finished_is_not_waited_for():
    core, a, b = pair()
    push(core, a, 2, "w", 1, ONES)
    assert pull(core, a, 3, "w", 1) == []
    assert values(ask(core, b, "finish", 2)) == {a: [1.0] * 4}
    assert ops(ask(core, a, "barrier", 4, number=1)) == ["done"]


def test_a_dead_worker_ends_the_waits_with_its_name():
    core, a, _ = pair(dead_after=5.0)
    push(core, a, 2, "w", 1, ONES)
    assert pull(core, a, 3, "w", 1) == []
    core.receive(a, [pack("ping")], 4.0)
    (reply,) = messages(core.tick(6.0))
    assert (reply[0], reply[2]["seq"], reply[2]["kind"]) == (a, 3, "dead")
    assert "worker 1 has not been heard of for 5 s" in reply[2]["text"]
    assert "step 1 of key 'w' waits for worker 1" in reply[2]["text"]
    # What would wait for it is refused at once; what need not wait works.
    assert ops(pull(core, a, 4, "w", 1)) == ["error"]
    assert ops(pull(core, a, 5, "w", 0)) == ["value"]


def test_a_dead_worker_that_comes_again_takes_part_from_where_the_key_is():
    core, a, b = pair(dead_after=5.0)
    for peer in (a, b):
        push(core, peer, 2, "w", 1, ONES)
    core.receive(a, [pack("ping")], 4.0)
    core.tick(6.0)
    b = hello(core, 1, session=b"another process.", now=7.0)
    (reply,) = messages(init(core, b, 1, "w"))
    assert reply[2]["version"] == 1
    push(core, a, 3, "w", 2, ONES)
    push(core, b, 2, "w", 2, ONES)
    assert values(pull(core, a, 4, "w", 2)) == {a: [2.0] * 4}


def test_steps_go_on_without_the_dead_where_that_was_asked_for():
    core, a, _ = pair(dead_after=5.0, on_dead_worker="continue")
    push(core, a, 2, "w", 1, ONES)
    assert pull(core, a, 3, "w", 1) == []
    core.receive(a, [pack("ping")], 4.0)
    assert values(core.tick(6.0)) == {a: [1.0] * 4}


def test_in_async_each_push_counts_at_once():
    core = ServerCore(Rules(workers=2))
    a, b = hello(core, 0, sync=False), hello(core, 1, sync=False)
    for peer in (a, b):
        init(core, peer, 1, "w")
        ask(core, peer, "optimizer", 2, number=1, name="test", numbers={})
    for step in (1, 2, 2):
        push(core, a, 2 + step, "w", step, ONES, optimizer=1)
    assert values(pull(core, b, 9, "w", 0)) == {b: [2.0] * 4}


def test_a_bound_on_staleness_keeps_the_fast_waiting():
    core = ServerCore(Rules(workers=2, staleness=1))
    a, b = hello(core, 0, sync=False), hello(core, 1, sync=False)
    for peer in (a, b):
        init(core, peer, 1, "w")
    assert ops(push(core, a, 2, "w", 1, ONES)) == ["done"]
    assert push(core, a, 3, "w", 2, ONES) == []
    assert [peer for peer, *_ in messages(push(core, b, 2, "w", 1, ONES))] == [b, a]


def test_workers_say_the_bound_and_must_agree_with_the_server_and_each_other():
    core = ServerCore(Rules(workers=2))
    a, b = hello(core, 0, sync=False), hello(core, 1, sync=False)
    for peer in (a, b):
        init(core, peer, 1, "w")
    assert ops(ask(core, a, "staleness", 2, steps=1)) == ["done"]
    (reply,) = messages(ask(core, b, "staleness", 2, steps=3))
    assert "it is 1 here, worker 1 asks for 3" in reply[2]["text"]
    assert ops(ask(core, b, "staleness", 3, steps=1)) == ["done"]
    push(core, a, 3, "w", 1, ONES)
    assert ops(pull(core, a, 4, "w", 1)) == ["value"]
    assert push(core, a, 5, "w", 2, ONES) == []
    assert pull(core, a, 6, "w", 2) == [], "a pull waits, too"
    assert values(ask(core, b, "finish", 4)) == {a: [1.0] * 4}


def test_a_bound_on_staleness_is_refused_in_sync():
    core, a, _ = pair()
    assert "nobody is ahead" in messages(ask(core, a, "staleness", 2, steps=1))[0][2]["text"]


def test_a_dead_worker_ends_the_wait_at_the_bound():
    core = ServerCore(Rules(workers=2, staleness=0, dead_after=5.0))
    a, b = hello(core, 0, sync=False), hello(core, 1, sync=False)
    for peer in (a, b):
        init(core, peer, 1, "w")
    assert push(core, a, 2, "w", 1, ONES) == []
    core.receive(a, [pack("ping")], 4.0)
    (reply,) = messages(core.tick(6.0))
    assert (reply[0], reply[2]["kind"]) == (a, "dead")
    assert "step 1 of key 'w' waits for worker 1, more than 0 steps behind" in reply[2]["text"]


def test_sync_and_async_do_not_mix():
    core = ServerCore(Rules(workers=2))
    hello(core, 0)
    replies = core.receive(
        b"x", [pack("hello", version=VERSION, rank=1, world=2, server=0, servers=1, sync=False, session=bytes(16))], 0.0
    )
    assert (
        "all workers must create a dist_sync store, as the first did, got dist_async" in messages(replies)[0][2]["text"]
    )


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (lambda c, p: pull(c, p, 5, "v", 0), "must be initialised"),
        (lambda c, p: init(c, p, 5, "w", torch.zeros(5)), "another worker has"),
        (lambda c, p: init(c, p, 5, "w", torch.zeros(4, dtype=torch.float16)), "another worker has"),
        (lambda c, p: push(c, p, 5, "w", 1, torch.ones(5)), "a push of key 'w' has 20 bytes"),
        (lambda c, p: ask(c, p, "push", 5, torch.ones(5), items=[["w", 1, 16, -1]], **PLAIN), "ends at byte 20"),
        (lambda c, p: ask(c, p, "push", 5, torch.ones(3), items=[["w", 1, 16, -1]], **PLAIN), "has 12 bytes, not 16"),
        (lambda c, p: push(c, p, 5, "w", 1, torch.ones(3)), "has"),
        (lambda c, p: push(c, p, 5, "w", 1, ONES, config=7), "never sent"),
        (lambda c, p: push(c, p, 5, "w", 1, ONES, optimizer=7), "never sent"),
        (lambda c, p: push(c, p, 5, "w", 1, ONES, rows=5), "5 rows"),
        (lambda c, p: ask(c, p, "rows", 5, torch.tensor([4]), key="w", step=0), "row_ids of key 'w' must be in [0, 4)"),
        (
            lambda c, p: ask(c, p, "rows", 5, torch.tensor([-1]), key="w", step=0),
            "row_ids of key 'w' must be in [0, 4)",
        ),
        (
            lambda c, p: ask(c, p, "config", 5, number=1, config={**OFF.to_config(), "push": {"name": "no"}}),
            "no",
        ),
        (lambda c, p: ask(c, p, "config", 5, number=1, config={"evil": 1}), "push and memory"),
        (lambda c, p: ask(c, p, "config", 5, number=1, config=parse({"type": "gradiveq"}).to_config()), "rounds"),
        (lambda c, p: ask(c, p, "optimizer", 5, number=1, name="os.system", numbers={}), "Known"),
        (lambda c, p: ask(c, p, "states", 5), "after set_optimizer"),
        (lambda c, p: ask(c, p, "restore", 5, ONES), "after set_optimizer"),
        (lambda c, p: ask(c, p, "fly", 5), "an op, one of"),
        (lambda c, p: ask(c, p, "pull", 5, key="w", step=0), "has the fields"),
        (lambda c, p: ask(c, p, "pull", 5, items=[[1.5, 0]]), "bad items"),
        (lambda c, p: ask(c, p, "pull", 5, items=[["w", -1]]), "bad items"),
        (lambda c, p: ask(c, p, "rows", 5, torch.tensor([0]), key=1.5, step=0), "bad key"),
        (lambda c, p: ask(c, p, "rows", 5, torch.tensor([0]), key="w", step=-1), "bad step"),
        (lambda c, p: c.receive(p, [b"\xc1"], 0.0), "msgpack"),
        (lambda c, p: c.receive(p, [], 0.0), "a header"),
        (lambda c, p: c.receive(p, [pack("ping"), b"", b""], 0.0), "at most one frame"),
        (lambda c, p: c.receive(p + b"?", [pack("pull", seq=1, items=[["w", 0]])], 0.0), "starts with hello"),
    ],
)
def test_what_is_wrong_is_answered_and_changes_nothing(request_, message):
    core, a, b = pair()
    told = messages(request_(core, a))
    assert [op for _, op, *_ in told] == ["error"]
    assert message in told[0][2]["text"]
    a = hello(core, 0)
    for peer in (a, b):
        push(core, peer, 9, "w", 1, ONES)
    assert values(pull(core, b, 10, "w", 1)) == {b: [2.0] * 4}


def test_limits():
    core = ServerCore(Rules(workers=1, max_bytes=100, max_keys=2))
    a = hello(core, 0, world=1)
    assert "at most 100" in messages(init(core, a, 1, "big", torch.zeros(26)))[0][2]["text"]
    for key in range(2):
        assert ops(init(core, a, 2 + key, key)) == ["done"]
    assert "at most 2 keys" in messages(init(core, a, 9, "third"))[0][2]["text"]


def test_an_optimizer_for_a_value_of_integers_is_refused_before_anything_counts():
    core = ServerCore(Rules(workers=1))
    peer = hello(core, 0, world=1)
    init(core, peer, 1, "n", torch.zeros(4, dtype=torch.int64))
    ask(core, peer, "optimizer", 2, number=1, name="sgd", numbers={"learning_rate": 0.1})
    ((_, op, fields, _),) = messages(push(core, peer, 3, "n", 1, torch.ones(4, dtype=torch.int64), optimizer=1))
    assert (op, fields["kind"]) == ("error", "config")
    assert "key 'n', which optimizer 'sgd' updates, must be floating-point, got torch.int64" in fields["text"]
    assert ops(push(core, peer, 4, "n", 1, torch.ones(4, dtype=torch.int64))) == ["done"]
    assert core.values.parts["n"].version == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_cannot_be_applied_is_told_to_all_and_ends_nobody(late, capsys):
    """Also where the clock completes it, because the worker that was missing is dead."""
    core, a, b = pair(on_dead_worker="continue")
    core.values.parts["w"]._sum = None  # Stands for memory that is not there, or an optimizer that raises.
    push(core, a, 2, "w", 1, ONES, now=1e3)
    assert pull(core, a, 3, "w", 1, now=1e3) == []
    told = core.tick(1e3) if late else push(core, b, 2, "w", 1, ONES, now=1e3)
    errors = {peer: fields["text"] for peer, op, fields, _ in messages(told) if op == "error"}
    assert "step 1 of key 'w' could not be applied: TypeError" in errors[a]
    for peer, seq in ((a, 4),) if late else ((a, 4), (b, 4)):
        ((_, op, fields, _),) = messages(pull(core, peer, seq, "w", 1, now=1e3))
        assert (op, fields["kind"]) == ("error", "config")
        assert "could not be applied" in fields["text"]
    assert "TypeError" in capsys.readouterr().err
