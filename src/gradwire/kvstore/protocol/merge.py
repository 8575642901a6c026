"""Receiving side of a key: payloads of all senders become one sum.

For most methods that is zeros, to which every payload is added in the order of the senders: MXNet's arithmetic, bit for
bit. Methods that turn the mean into something (a vote), or whose memory keeps an estimate of it, get the mean, and the
sum is the number of senders times what they make of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.kernels.stored import shaped
from gradwire.kvstore.protocol.buffers import lease, lease_zeros
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.payloads import sent_layout, views
from gradwire.memory import facts
from gradwire.memory.base import Memory
from gradwire.vocabulary import align

__all__ = ["Merger", "add_dense", "as_row_sparse", "merged_rows", "row_sparse"]


class Merger:
    """A merger that sums the payloads of one key, and holds the memory of the mean.

    Args:
        shape: shape of the key's tensor.
        device: device of the sums.
    """

    def __init__(self, shape: torch.Size, device: torch.device | str = "cpu") -> None:
        self.shape, self.device = shape, torch.device(device)
        self.kept: dict[str, Tensor] = {}

    def merge(self, compression: Compression, payloads: Sequence[Tensor]) -> Tensor:
        """Sum the decoded payloads: float32, of the key's shape.

        Args:
            compression: compression with which all of them were made.
            payloads: uint8, one for each sender, in their order.
        """
        compressor, memory = compression.push, compression.memory
        assert compressor is not None
        assert memory is not None
        nbytes = sent_layout(compressor, self.shape).nbytes
        # At least 8: a row's stride must allow the views, also where there is nothing to see.
        rows = lease((len(payloads), align(max(nbytes, 1))), torch.uint8).to(self.device)
        for row, payload in zip(rows, payloads, strict=True):
            row[:nbytes].copy_(payload)
        stacked = views(compressor, self.shape, rows[:, :nbytes])
        out = lease_zeros(self.shape, self.device)
        if sums(compressor, memory):
            compressor.add_decoded_many(stacked, out, 1.0)
            return out
        for buffer in memory.buffers:
            if buffer not in self.kept:
                self.kept[buffer] = shaped(memory.form.zeros(self.shape.numel(), self.device), self.shape)
        facts.begin(memory, out, self.kept)
        compressor.add_decoded_many(stacked, out, 1.0 / len(payloads))
        facts.finish(memory, out, self.kept, torch.zeros(1, dtype=torch.bool, device=self.device))
        capabilities.settle(compressor, out)
        return out.mul_(len(payloads))

    def merge_rows(self, compression: Compression, payloads: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
        """Sum payloads as ``merge`` does that hold only the rows (int64) of each sender."""
        compressor = compression.push
        assert compressor is not None
        out = lease_zeros(self.shape, self.device)
        for payload, mine in zip(payloads, rows, strict=True):
            shape = (len(mine), *self.shape[1:])
            decoded = torch.zeros(shape, dtype=torch.float32, device=self.device)
            compressor.add_decoded(compressor.layout(shape).views(payload.to(self.device)), decoded)
            out.index_add_(0, mine.to(self.device), decoded)
        return out


def sums(compressor: Compressor, memory: Memory) -> bool:
    """Return whether the result of a method is the plain sum of its decoded payloads."""
    return not facts.keeps_mean(memory) and not capabilities.settles(compressor)


def add_dense(grads: Sequence[Tensor], shape: torch.Size, device: torch.device | str) -> Tensor:
    """Sum uncompressed gradients from left to right in new memory, in float32 or in their type if it is wider."""
    dtype = torch.promote_types(grads[0].dtype, torch.float32) if grads[0].is_floating_point() else grads[0].dtype
    out = lease(shape, dtype) if torch.device(device).type == "cpu" else torch.empty(shape, dtype=dtype, device=device)
    first, rest = (None, grads) if grads[0].is_sparse else (grads[0], grads[1:])
    out.zero_() if first is None else out.copy_(first)
    for grad in rest:
        if grad.is_sparse:
            out.index_add_(0, grad.indices()[0].to(device), grad.values().to(device, dtype))
        else:
            out.add_(grad.to(device))
    return out


def row_sparse(rows: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """Make a tensor that has values in some rows only.

    Args:
        rows: int64 (R,), growing.
        values: (R, ...), any dtype.
        shape: shape of the whole tensor.
    """
    # Rows were checked: if nothing is said, torch warns that it does not check them again.
    return torch.sparse_coo_tensor(rows[None], values, tuple(shape), is_coalesced=True, check_invariants=False)


def as_row_sparse(value: Tensor) -> Tensor:
    """Keep the rows of a dense tensor in which any element is not 0.

    It is ``value.to_sparse(1)``, which looks at the elements one by one and takes 500 times as long.

    >>> as_row_sparse(torch.tensor([[0.0, 0.0], [1.0, 0.0]])).indices()
    tensor([[1]])
    """
    rows = (
        value.reshape(len(value), -1).ne(0).any(1).nonzero()[:, 0]
        if value.numel()
        else torch.empty(0, dtype=torch.int64, device=value.device)
    )
    return row_sparse(rows.to(value.device), value[rows], value.shape)


def merged_rows(rows: Sequence[Tensor]) -> Tensor:
    """The rows that any of several tensors has, each once, in increasing order: int64.

    >>> merged_rows([torch.tensor([3, 5]), torch.tensor([0, 3])])
    tensor([0, 3, 5])
    """
    unique: Tensor = torch.unique(torch.cat(list(rows)))
    return unique
