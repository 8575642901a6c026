"""A call that failed has changed nothing: it may be made again, and later calls go on as if it had not been."""

import threading

import pytest
import torch

from gradwire import ConfigError, GroupError
from gradwire.kvstore.protocol.compression import parse
from gradwire.kvstore.protocol.keys import KeyPart
from gradwire.kvstore.worker.connection import ServerConnection
from gradwire.kvstore.worker.worker_key import WorkerKey
from tests.kvstore.in_threads import stores


def test_a_worker_comes_again_to_a_barrier_for_which_the_others_were_late():
    with stores(2, timeout=3.0) as (one, other):
        with pytest.raises(GroupError, match="barrier 1 was not answered within 3 s: barrier 1 waits for worker 1"):
            one.barrier()
        for _ in range(2):
            late = threading.Thread(target=other.barrier)
            late.start()
            one.barrier()
            late.join(10)
            assert not late.is_alive()


def test_pushes_go_on_with_the_compression_before_one_that_a_server_refused(monkeypatch):
    with stores(1) as (kv,):
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        kv.init("w", torch.zeros(3))
        with monkeypatch.context() as patch:
            patch.setattr("gradwire.kvstore.server.run_requests.require_alone", refused)
            with pytest.raises(ConfigError, match="not known here"):
                kv.set_gradient_compression({"type": "2bit", "threshold": 2.0})
        out = torch.empty(3)
        for want in (0.0, 0.5):
            kv.push("w", torch.full((3,), 0.3))
            kv.pull("w", out)
            assert out.tolist() == [want] * 3, "with a threshold of 0.5, whose residual stays"
        kv.set_gradient_compression({"type": "2bit", "threshold": 2.0})
        kv.push("w", torch.full((3,), 5.0))
        kv.pull("w", out)
        assert out.tolist() == [2.0] * 3


@pytest.mark.parametrize("sparse", [False, True])
def test_a_code_that_overflows_in_one_part_of_a_key_leaves_the_residuals_of_the_others(sparse):
    parts = [KeyPart(0, 0, 8), KeyPart(1, 8, 16)]
    key = WorkerKey("w", torch.Size((4, 4)), torch.float32, sparse, parts)
    compression = parse({"type": "fp16", "memory": "residual"})

    def encode(grad):
        key.encode([grad.to_sparse(1).coalesce() if sparse else grad], compression)
        return [sender.kept["residual"].clone() for sender in key.senders.values()]

    good = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    kept = encode(good)
    bad = good.clone()
    bad[3] = 7e4
    with pytest.raises(ConfigError, match="nothing of this key was pushed"):
        encode(bad)
    for sender, before in zip(key.senders.values(), kept, strict=True):
        assert bool(before.any())
        assert torch.equal(sender.kept["residual"], before)


def refused(_):
    raise ConfigError("this method is not known here")


def test_calls_fail_at_once_where_the_thread_of_the_connections_has_ended(monkeypatch, caplog):
    """An error of our own in it must not make every later call wait for as long as it may."""

    def broken(self):
        raise ZeroDivisionError("a mistake")

    with stores(1, timeout=60.0) as (kv,):
        kv.init("w", torch.zeros(3))
        monkeypatch.setattr(ServerConnection, "read", broken)
        told = "the thread that talks to the servers has ended: ZeroDivisionError: a mistake"
        for _ in range(2):
            with pytest.raises(GroupError, match=told):
                kv.pull("w", torch.empty(3))
        with pytest.raises(GroupError, match=told):
            kv.push("w", torch.ones(3))
    assert told in caplog.text
