"""A distributed store's answers to misuse, and shapes of keys that are cut, with servers in threads of the test."""

import threading

import pytest
import torch

from gradwire import ConfigError, GroupError, registry
from gradwire.compressors.base import MultiRound
from gradwire.vocabulary import Key
from tests.kvstore.in_threads import stores

ROWS = (11, 20)


def test_workers_that_want_different_answers_are_told_at_once():
    with stores(2, timeout=60) as (a, b):
        a.set_gradient_compression({"type": "none", "pull": {"type": "topk"}})
        for kv in (a, b):
            kv.init("w", torch.zeros(100))
        a.push("w", torch.ones(100))
        a._flush()
        b.push("w", torch.ones(100))
        # The step will never be complete: without the refusal the pull would wait for its deadline.
        with pytest.raises(ConfigError, match="'pull' of set_gradient_compression must be the same on all workers"):
            b.pull("w", torch.empty(100))


def test_workers_that_want_different_bounds_on_staleness_are_told():
    with stores(1, name="dist_async", rules={"staleness": 3}, staleness=3, timeout=60):
        pass
    with (
        pytest.raises(ConfigError, match=r"staleness must be the same .*: it is 3 here, worker 0 asks for 2"),
        stores(1, name="dist_async", rules={"staleness": 3}, staleness=2, timeout=60),
    ):
        pass


@pytest.mark.timeout(30)
def test_nobody_waits_for_a_thread_that_has_ended():
    before = set(threading.enumerate())
    with stores(1, timeout=1) as (kv,):
        (thread,) = (each for each in set(threading.enumerate()) - before if each.name == "gradwire-kvstore")
        kv._client._inbox.put(None)
        thread.join(10)
        with pytest.raises(GroupError, match="init of key 'w' was not answered within 1 s"):
            kv.init("w", torch.zeros(3))


@pytest.mark.parametrize("name", registry.names("compressors"))
def test_rows_of_a_key_that_is_cut_between_them(name):
    with stores(1, 2, bound=100, timeout=60) as (kv,):
        if name == "gradiveq":
            with pytest.raises(ConfigError, match="needs rounds"):
                kv.set_gradient_compression({"type": name})
            return
        kv.set_gradient_compression({"type": name})
        kv.init("e", torch.zeros(ROWS).to_sparse(1))
        code = kv.compression.push
        out, total = torch.empty(ROWS), torch.zeros(ROWS)
        kv.row_sparse_pull("e", out, row_ids=torch.tensor([], dtype=torch.int64))
        assert not out.any()
        for rows in ([0, 10], [], [3, 4], [10]):
            grad = torch.sparse_coo_tensor([rows], torch.ones(len(rows), 20), ROWS, check_invariants=True)
            if code is not None and (isinstance(code, MultiRound) or code.init_state(ROWS, Key())):
                with pytest.raises(ConfigError, match="keeps a state of the whole tensor"):
                    kv.push("e", [grad, grad])
                return
            if name == "loco":
                with pytest.raises(ConfigError, match="keeps blocks of the whole tensor"):
                    kv.push("e", [grad, grad])
                return
            kv.push("e", [grad, grad])
            kv.row_sparse_pull("e", out, row_ids=torch.arange(11))
            untouched = [row for row in range(11) if row not in rows]
            assert not out[untouched].any()
            total += out
        assert name != "none" or total[:, 0].tolist() == [2, 0, 0, 2, 2, 0, 0, 0, 0, 0, 4]
        assert total[[0, 3, 4, 10]].any()


def test_an_error_of_a_push_names_the_keys_that_were_pushed_before():
    """A residual that overflows shows only when its key is encoded, after others of the call were."""
    huge = torch.full((4,), 3e38)
    with stores(1, timeout=60) as (kv,):
        for key in ("a", "b"):
            kv.init(key, torch.zeros(4))
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        kv.push(["a", "b"], [torch.ones(4), huge])
        kv.push("a", torch.ones(4))  # The two are at different steps now, so they are encoded one after the other.
        with pytest.raises(ConfigError, match=r"gradient of key 'b' must be finite .* of this call 'a' were pushed$"):
            kv.push(["a", "b"], [torch.ones(4), huge])
        with pytest.raises(ConfigError, match=r"nothing of this key was pushed: [^;]*$"):
            kv.push("b", huge)
        kv.pull("a", out=torch.empty(4))
        assert (kv.version("a"), kv.version("b")) == (3, 1)
