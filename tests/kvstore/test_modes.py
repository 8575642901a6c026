"""A store that is made, or first used, in inference mode serves outside of it."""

import contextlib

import pytest
import torch

from gradwire import kvstore
from tests.kvstore.in_threads import stores


def values(kv: kvstore.KVStore, mode: type) -> list[torch.Tensor]:
    found = []
    with mode():
        kv.set_gradient_compression({"type": "qsgd", "pull": {"type": "blockwise8"}})
        kv.set_optimizer("adam", learning_rate=0.1)
        kv.init("w", torch.ones(40, 8))
    for step, each in enumerate((mode, contextlib.nullcontext, mode)):
        with each():
            kv.push("w", torch.full((40, 8), step - 0.5))
            kv.pull("w", out := torch.empty(40, 8))
            found.append(torch.from_numpy(out.numpy()))
    return found


@pytest.mark.parametrize("name", ["device", "dist_sync"])
def test_inference_mode_changes_nothing_and_ends_nothing(name: str) -> None:
    both = []
    for mode in (contextlib.nullcontext, torch.inference_mode):
        with stores(1) if name == "dist_sync" else contextlib.nullcontext([kvstore.create(name)]) as (kv,):
            both.append(torch.stack(values(kv, mode)).tolist())
    assert both[0] == both[1]
