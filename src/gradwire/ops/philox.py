"""Random words that depend on a key, a step and a position alone."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._philox import philox_words
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["philox"]


def _check(out: Tensor, key: int, step: int, offset: int = 0) -> None:  # noqa: ARG001
    check_vector("philox.out", out, torch.int32, out)


@operation("philox(Tensor(a!) out, int key, int step, int offset=0) -> ()", _check)
def philox(out: Tensor, key: int, step: int, offset: int = 0) -> None:
    """Fill ``out`` with Philox4x32-10: word i is word i % 4 of the counter (i // 4 + offset, step) under ``key``.

    Args:
        out: int32, any size; each element takes the bits of one 32-bit word.
        key: which stream, a signed 64-bit integer.
        step: which step of the stream, a signed 64-bit integer: the upper half of the counter.
        offset: the first counter, so that a stream can be entered at word 4 * offset.

    Raises:
        ConfigError: ``out`` is not of this form.

    >>> words = torch.empty(4, dtype=torch.int32)
    >>> philox(words, key=0, step=0)
    >>> [f"{word & 0xffffffff:08x}" for word in words.tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']

    Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    words = philox_words(offset, -(-out.numel() // 4), key, step, out.device)
    out.copy_(((words ^ 2**31) - 2**31).view(-1)[: out.numel()])


@philox.kernel("CPU")
def _cpu(out: Tensor, key: int, step: int, offset: int = 0) -> None:
    kernels.philox(out.data_ptr(), key, step, offset, out.numel(), torch.get_num_threads())
