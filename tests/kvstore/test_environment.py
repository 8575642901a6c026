"""The environment's variables about this process, and values that it must not have."""

from pathlib import Path

import pytest

from gradwire import ConfigError
from gradwire.kvstore.protocol.environment import WorkerPlace, flag, number, own_keys, ranked, read_place, start_timeout
from gradwire.kvstore.protocol.messages import pack
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.server import Finished
from gradwire.kvstore.worker.store import DistStore
from tests.kvstore.talk import ask, hello

HERE = {"GRADWIRE_SERVERS": "tcp://127.0.0.1:1, tcp://127.0.0.1:2"}


@pytest.mark.parametrize(
    "told",
    [
        {"GRADWIRE_RANK": "1", "GRADWIRE_WORLD_SIZE": "3"},
        {"RANK": "1", "WORLD_SIZE": "3"},
        {"DMLC_RANK": "1", "DMLC_NUM_WORKER": "3"},
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "3"},
    ],
)
def test_rank_and_world_come_from_whoever_started_the_process(told):
    assert read_place(HERE | told) == WorkerPlace(("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"), 1, 3)


def test_two_starters_are_not_mixed():
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert ranked({**slurm, "RANK": "2", "WORLD_SIZE": "4"}) == (2, 4)
    assert ranked({**slurm, "DMLC_NUM_WORKER": "4"}) == (0, 1)
    with pytest.raises(ConfigError, match="WORLD_SIZE is missing"):
        ranked({**slurm, "RANK": "2"})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: read_place({}), "GRADWIRE_SERVERS"),
        (lambda: read_place({"GRADWIRE_SERVERS": "127.0.0.1:7000"}), "GRADWIRE_SERVERS must be endpoints as tcp://"),
        (lambda: read_place(HERE), "GRADWIRE_RANK and GRADWIRE_WORLD_SIZE, or RANK and WORLD_SIZE, or DMLC_RANK"),
        (lambda: ranked({"RANK": "3", "WORLD_SIZE": "3"}), r"RANK must be in \[0, 3\), got 3"),
        (lambda: ranked({"RANK": "a", "WORLD_SIZE": "3"}), "RANK must be an integer, got 'a'"),
        (lambda: number({"N": "0"}, "N", 1), "N must be an integer >= 1, got 0"),
        (lambda: flag({"F": "yes"}, "F"), "F must be 0 or 1, got 'yes'"),
        (lambda: start_timeout({"GRADWIRE_START_TIMEOUT": "soon"}), "GRADWIRE_START_TIMEOUT must be seconds > 0"),
        (lambda: start_timeout({"GRADWIRE_START_TIMEOUT": "-1"}), "GRADWIRE_START_TIMEOUT must be seconds > 0"),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_the_keys_are_those_of_the_process_or_its_part_of_all_keys(tmp_path):
    assert own_keys({}, "worker-1") is None
    assert own_keys({"GRADWIRE_KEYS": str(tmp_path)}, "worker-1") == tmp_path
    (tmp_path / "worker-1").mkdir()
    assert own_keys({"GRADWIRE_KEYS": str(tmp_path)}, "worker-1") == tmp_path / "worker-1"
    assert own_keys({"GRADWIRE_KEYS": str(tmp_path)}, "servers") == Path(tmp_path)


def test_mxnets_bound_is_read(monkeypatch):
    place = WorkerPlace(("tcp://127.0.0.1:1",), 0, 1)
    for text, bound in ((None, 1_000_000), ("64", 64)):
        if text is not None:
            monkeypatch.setenv("MXNET_KVSTORE_BIGARRAY_BOUND", text)
        kv = DistStore("dist_sync", place, timeout=1)
        assert kv.bound == bound
        kv.close()
    monkeypatch.setenv("MXNET_KVSTORE_BIGARRAY_BOUND", "0")
    with pytest.raises(ConfigError, match="MXNET_KVSTORE_BIGARRAY_BOUND"):
        DistStore("dist_sync", place, timeout=1)


def test_a_server_of_one_run_is_finished_when_all_workers_have_left():
    server = ServerCore(Rules(workers=2))
    finished = Finished(server)
    peers = [hello(server, rank) for rank in range(2)]
    for seq, peer in enumerate(peers, 1):
        assert not finished()
        ask(server, peer, "finish", seq)
        server.receive(peer, [pack("leave")], 0.0)
    assert finished()


def test_who_leaves_without_having_finished_may_come_again():
    server = ServerCore(Rules(workers=2))
    peer = hello(server, 0)
    server.receive(peer, [pack("leave")], 0.0)
    assert server.members.left == set()
    assert len(server.members) == 1


def test_a_server_without_workers_is_finished_after_a_while():
    server = ServerCore(Rules(workers=2))
    assert Finished(server, quiet=1e-9)()
    hello(server, 0)
    assert not Finished(server, quiet=1e-9)()
