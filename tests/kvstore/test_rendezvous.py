"""The scheduler: who gets which rank, who is refused, and what those who came are told when others did not."""

import re
import threading

import pytest
import zmq

from gradwire import ConfigError, GroupError
from gradwire.kvstore.launch import scheduler
from gradwire.kvstore.launch.keygen import make_keys
from gradwire.kvstore.launch.scheduler import ANSWERS, Member, Rendezvous, join, schedule
from gradwire.kvstore.protocol.messages import VERSION, pack, unpack
from tests.kvstore.test_launchers import free_port

A, B = "tcp://10.0.0.1:1", "tcp://10.0.0.2:1"


def joined(core, peer, endpoint="", rank=-1, now=0.0, version=VERSION):
    """The messages that a join causes: the peer, the op and the fields of each."""
    frames = [pack("join", version=version, rank=rank, endpoint=endpoint)]
    return {to: unpack(parts, ANSWERS)[:2] for to, parts in core.receive(peer, frames, now)}


def complete(workers=2, servers=2):
    core = Rendezvous(workers, servers)
    for i in range(workers):
        joined(core, b"w%d" % i)
    for i in range(servers):
        joined(core, b"s%d" % i, f"tcp://10.0.0.1:{i + 1}")
    return core


def test_all_are_told_when_the_last_one_is_here():
    core = Rendezvous(2, 2)
    assert joined(core, b"w0") == joined(core, b"s0", A) == joined(core, b"w1") == {}
    told = joined(core, b"s1", B)
    ranks = {b"w0": 0, b"w1": 1, b"s0": -1, b"s1": -1}
    assert told == {peer: ("group", {"rank": rank, "servers": [A, B]}) for peer, rank in ranks.items()}


def test_a_rank_that_is_asked_for_is_kept_free_by_the_others():
    core = Rendezvous(3, 1)
    for peer, rank in ((b"x", -1), (b"y", 0), (b"z", -1)):
        joined(core, peer, rank=rank)
    told = joined(core, b"s", A)
    assert {peer: fields["rank"] for peer, (_, fields) in told.items()} == {b"x": 1, b"y": 0, b"z": 2, b"s": -1}


@pytest.mark.parametrize(
    ("core", "arguments", "message"),
    [
        (Rendezvous(2, 1), {"rank": 2}, "in \\[0, 2\\), got 2"),
        (Rendezvous(2, 1), {"version": VERSION + 1}, "speaks version"),
        (Rendezvous(2, 1), {"endpoint": "ipc:///tmp/x"}, "tcp://ADDRESS:PORT"),
        (complete(), {}, "must name its rank"),
        (complete(), {"endpoint": "tcp://10.0.0.9:9"}, "all 2 servers have joined"),
    ],
)
def test_who_cannot_join_is_told_why(core, arguments, message):
    ((to, (op, fields)),) = joined(core, b"late", **arguments).items()
    assert (to, op) == (b"late", "error")
    assert re.search(message, fields["text"])


def test_a_worker_that_comes_again_by_its_rank_gets_it():
    assert joined(complete(), b"again", rank=1)[b"again"][1]["rank"] == 1


def test_a_worker_takes_the_place_of_an_earlier_one_of_its_rank_before_the_group_is_complete():
    """It may be the same one, which was killed and started again."""
    core = Rendezvous(2, 1)
    joined(core, b"a", rank=1)
    assert joined(core, b"a", rank=1, now=3.0) == {}
    # Two that live would end each other in turns.
    ((_, fields),) = joined(core, b"b", rank=1, now=7.0).values()
    assert fields == {"text": "rank 1 is taken by a process that was heard of 4.0 s ago"}
    told = joined(core, b"b", rank=1, now=7.5)
    assert told == {b"a": ("error", {"text": "another process has joined as rank 1"})}
    joined(core, b"s", A)
    told = joined(core, b"c", rank=0)
    assert {peer: fields["rank"] for peer, (_, fields) in told.items()} == {b"b": 1, b"c": 0, b"s": -1}


@pytest.mark.parametrize("silent", [False, True])
def test_a_server_that_ends_before_the_group_is_complete_makes_room_for_another(silent):
    core = Rendezvous(1, 1)
    joined(core, b"dead", A)
    if not silent:
        core.receive(b"dead", [pack("leave")], 1.0)
    assert not core.over(20.0 if silent else 1.0)
    assert joined(core, b"s", B, now=20.0) == {}
    assert joined(core, b"w", now=20.0)[b"w"] == ("group", {"rank": 0, "servers": [B]})


def test_a_worker_that_is_silent_before_the_group_is_complete_makes_room_for_another():
    core = Rendezvous(2, 1)
    joined(core, b"dead")
    joined(core, b"w", now=5.0)
    core.receive(b"w", [pack("ping")], 14.0)
    assert not core.over(20.0)
    assert core.missing() == "1 of 2 workers and 0 of 1 servers have joined"
    joined(core, b"again", now=20.0)
    # It was stopped, and is not dead: it is told at once that its place is gone.
    assert joined(core, b"dead", now=20.0) == {b"dead": ("error", {"text": "all 2 workers have joined"})}
    told = joined(core, b"s", A, now=20.0)
    assert {peer: fields["rank"] for peer, (_, fields) in told.items()} == {b"w": 0, b"again": 1, b"s": -1}


def test_a_worker_that_was_silent_gets_its_place_back_while_it_is_free():
    core = Rendezvous(1, 1)
    joined(core, b"w", rank=0)
    assert not core.over(20.0)
    assert joined(core, b"w", rank=0, now=20.0) == {}
    assert joined(core, b"s", A, now=20.0)[b"w"] == ("group", {"rank": 0, "servers": [A]})


def test_workers_do_not_keep_a_complete_group_from_being_over():
    core = complete()
    assert core.receive(b"w0", [pack("ping")], 14.0) == []
    assert core.over(16.0)


@pytest.mark.parametrize(
    "frames", [[b""], [b"\xc1"], [pack("join")], [pack("push", seq=1)], [b"x" * 70000], [b"", b"", b""]]
)
def test_bytes_that_mean_nothing_get_an_error_and_change_nothing(frames):
    core = Rendezvous(1, 1)
    ((_, parts),) = core.receive(b"x", frames, 0.0)
    assert unpack(parts, ANSWERS)[0] == "error"
    assert core.missing() == "0 of 1 workers and 0 of 1 servers have joined"


def test_it_is_over_when_the_servers_have_left_or_are_silent():
    core = complete()
    assert not core.over(1.0)
    core.receive(b"s0", [pack("leave")], 2.0)
    assert not core.over(3.0)
    core.receive(b"s1", [pack("ping")], 10.0)
    assert not core.over(20.0)
    assert core.over(30.0)


def running(timeout, endpoint="", **options):
    """A scheduler for one worker and one server in a thread, and what ends it."""
    endpoint, raised = endpoint or f"tcp://127.0.0.1:{free_port()}", []

    def run():
        try:
            schedule(endpoint, 1, 1, timeout=timeout, **options)
        except GroupError as error:
            raised.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return endpoint, thread, raised


def complete_and_end(endpoint, thread, server_keys, worker_keys):
    """Let one server and one worker join, get their group, and leave; the scheduler ends with them."""
    server = Member(endpoint, endpoint=A, keys=server_keys, timeout=20)
    assert join(endpoint, -1, worker_keys, 20) == (0, (A,))
    while server.group is None:
        server.attend(0.1)
    server.leave()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("locked", [False, True])
def test_over_sockets_with_keys_and_without(locked, tmp_path):
    make_keys(tmp_path / "keys", 1)
    folders = [tmp_path / "keys" / name if locked else None for name in ("servers", "worker-0")]
    endpoint, thread, raised = running(20, keys=folders[0])
    complete_and_end(endpoint, thread, *folders)
    assert raised == []


def test_those_who_wait_join_a_scheduler_that_was_started_again(monkeypatch):
    monkeypatch.setattr(scheduler, "PING", 0.1)
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as killed:
        killed.bind(endpoint)
        members = [Member(endpoint, **wanted, timeout=60) for wanted in ({"endpoint": A}, {"rank": 0})]
        assert len({killed.recv_multipart()[0] for _ in members}) == 2
    _, thread, raised = running(60, endpoint)
    while any(member.group is None for member in members):
        for member in members:
            member.attend(0.05)
    assert [member.group for member in members] == [{"rank": rank, "servers": [A]} for rank in (-1, 0)]
    for member in members:
        member.leave()
    thread.join(20)
    assert not thread.is_alive()
    assert raised == []


def test_a_stranger_without_a_key_is_refused_at_once_and_told_so(tmp_path):
    make_keys(tmp_path / "keys", 1)
    servers, worker = tmp_path / "keys" / "servers", tmp_path / "keys" / "worker-0"
    endpoint, thread, raised = running(60, keys=servers)
    with pytest.raises(ConfigError, match=f"the scheduler at {endpoint} refused the handshake: it takes only who"):
        join(endpoint, -1, None, 60)
    # The stranger has taken no place of those who have keys.
    complete_and_end(endpoint, thread, servers, worker)
    assert raised == []


def test_who_does_not_come_is_missed_by_all_who_did():
    endpoint, thread, raised = running(1.5)
    with pytest.raises(GroupError, match=r"after 1.5 s 1 of 1 workers and 0 of 1 servers have joined"):
        join(endpoint, 0, None, 20)
    thread.join(20)
    assert raised == ["after 1.5 s 1 of 1 workers and 0 of 1 servers have joined"]


def test_an_address_that_others_can_reach_needs_keys():
    with pytest.raises(ConfigError, match="gradwire keygen"):
        schedule("tcp://0.0.0.0:0", 1, 1, timeout=1)


def test_a_worker_that_leaves_before_the_group_is_complete_makes_room_for_itself():
    core = Rendezvous(2, 1)
    joined(core, b"w0", rank=0)
    joined(core, b"w1", rank=1)
    core.receive(b"w1", [pack("leave")], 0.0)
    assert core.missing() == "1 of 2 workers and 0 of 1 servers have joined"
    assert joined(core, b"again", rank=1) == {}
    told = joined(core, b"s", A)
    assert {peer: fields["rank"] for peer, (_, fields) in told.items()} == {b"w0": 0, b"again": 1, b"s": -1}


def test_a_worker_that_leaves_a_complete_group_keeps_its_rank():
    core = complete()
    core.receive(b"w1", [pack("leave")], 0.0)
    assert joined(core, b"late") == {b"late": ("error", {"text": joined(complete(), b"late")[b"late"][1]["text"]})}
    assert joined(core, b"again", rank=1)[b"again"][1]["rank"] == 1
