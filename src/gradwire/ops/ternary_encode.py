"""2-bit codes in a form that follows from how many of them are not zero."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._codes import code_bytes
from gradwire.ops._ternary import capacity, write_ternary
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["ternary_encode"]


def _check(codes: Tensor, used: Tensor, stream: Tensor, n: int, words: bool = False) -> None:  # noqa: ARG001
    check_vector("ternary_encode.codes", codes, torch.uint8, codes, code_bytes(n, 2))
    check_vector("ternary_encode.used", used, torch.int32, codes, 1)
    check_vector("ternary_encode.stream", stream, torch.uint8, codes, capacity(n))


@operation("ternary_encode(Tensor codes, Tensor(a!) used, Tensor(b!) stream, int n, bool words=False) -> ()", _check)
def ternary_encode(codes: Tensor, used: Tensor, stream: Tensor, n: int, words: bool = False) -> None:
    """Write the codes as they are, as a bitmap with signs, or as coded gaps with signs: whichever is smallest.

    The first byte of the stream says which; the forms are described in ``docs/wire.md`` under ``twobit``.

    Args:
        codes: uint8, 4 * ceil(n / 16), as ``twobit_encode`` writes them.
        used: int32, 1 element: the bytes of ``stream`` that are in use, at most one more than ``codes`` has.
        stream: uint8, 1 + 4 * ceil(n / 16); what is not in use is of no meaning.
        n: elements.
        words: instead of a bitmap or gaps, 32 bits for each code that is not zero.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> codes, used = torch.tensor([0, 0, 0, 0b11000000, 0, 0, 0, 0b10], dtype=torch.uint8), torch.empty(1).int()
    >>> stream = torch.empty(9, dtype=torch.uint8)
    >>> ternary_encode(codes, used, stream, n=32)
    >>> used.item(), [f"{byte:08b}" for byte in stream[: used.item()].tolist()]
    (5, ['00000101', '00000010', '00000001', '00010100', '00010010'])
    """
    used.fill_(write_ternary(codes, stream, n, words))


@ternary_encode.kernel("CPU")
def _cpu(codes: Tensor, used: Tensor, stream: Tensor, n: int, words: bool = False) -> None:
    threads = torch.get_num_threads()
    kernels.ternary_encode(codes.data_ptr(), used.data_ptr(), stream.data_ptr(), words, n, threads)
