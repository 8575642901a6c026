"""Memory that is used again."""

import gc

import torch

from gradwire.kvstore.protocol.buffers import LEAST, Pool, lease, lease_zeros


def test_memory_comes_back_when_its_last_view_is_gone_whatever_that_is():
    pool = Pool()
    tensor = pool.lease(4 * LEAST)
    address, view = tensor.data_ptr(), tensor.view(torch.float32)[5:9].numpy().data
    del tensor
    other = pool.lease(4 * LEAST)
    assert other.data_ptr() != address
    view.release()
    del view
    gc.collect()
    assert pool.lease(4 * LEAST).data_ptr() == address


def test_two_that_are_in_use_never_share_memory():
    pool = Pool()
    tensors = [pool.lease(LEAST + 1000 * i).fill_(i) for i in range(20)]
    for i, tensor in enumerate(tensors):
        assert bool((tensor == i).all())
        assert tensor.numel() == LEAST + 1000 * i
        assert tensor.data_ptr() % 64 == 0


def test_never_more_is_kept_than_was_in_use_at_one_time():
    pool = Pool()
    for size in (8 * LEAST, 16 * LEAST, 4 * LEAST, 12 * LEAST):
        pool.lease(size)
    pool.lease(LEAST)
    assert sum(have for have, _ in pool._free) <= 16 * LEAST


def test_shapes_and_dtypes():
    assert lease((3, LEAST), torch.float16).dtype == torch.float16
    assert lease((2, 0)).shape == (2, 0)
    assert lease((), torch.int64).shape == ()
    lease((LEAST,)).fill_(7)
    assert not lease_zeros((LEAST,)).any()
