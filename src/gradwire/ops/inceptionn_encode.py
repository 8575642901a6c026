"""Tagged codes of a tensor: as many bytes for each element as its magnitude asks for."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._inceptionn import capacity, check_bound, encode
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["inceptionn_encode"]


def _check(x: Tensor, used: Tensor, stream: Tensor, bound: int) -> None:
    check_bound("inceptionn_encode", bound)
    check_vector("inceptionn_encode.x", x, torch.float32, x)
    check_vector("inceptionn_encode.used", used, torch.int32, x, 1)
    check_vector("inceptionn_encode.stream", stream, torch.uint8, x, capacity(x.numel()))


@operation("inceptionn_encode(Tensor x, Tensor(a!) used, Tensor(b!) stream, int bound) -> ()", _check)
def inceptionn_encode(x: Tensor, used: Tensor, stream: Tensor, bound: int) -> None:
    """Send nothing, 8 bits, 16 bits or the float32 of each element, so that none is off by 2**-bound.

    Elements below 2**-bound are dropped; those below 2**(7 - bound) travel as 7 bits of fixed point and a sign, those
    below 1 as 15, larger ones and what is not finite as they are. Where that takes more bytes than the tensor, the
    tensor itself is sent.

    Args:
        x: float32, n elements; not changed.
        used: int32, 1 element: how many bytes of the stream are in use.
        stream: uint8, 1 + 4 n, or none where n is 0; what is beyond ``used`` is of no meaning.
        bound: 1 to 15; a larger one means a smaller error and more bytes.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> used, stream = torch.empty(1, dtype=torch.int32), torch.empty(17, dtype=torch.uint8)
    >>> inceptionn_encode(torch.tensor([0.0, 0.01, -0.5, 2.0]), used, stream, bound=10)
    >>> used.item(), bytes(stream[:9].tolist()).hex()
    (9, '00e40a00c000000040')

    Source: Y. Li et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep
    Neural Networks", MICRO 2018.
    """
    encode(x, used, stream, bound)


@inceptionn_encode.kernel("CPU")
def _cpu(x: Tensor, used: Tensor, stream: Tensor, bound: int) -> None:
    addresses = x.data_ptr(), used.data_ptr(), stream.data_ptr()
    kernels.inceptionn_encode(*addresses, bound, x.numel(), torch.get_num_threads())
