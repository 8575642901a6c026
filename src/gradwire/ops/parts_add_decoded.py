"""Adds sparse entries of several lengths and kinds to a tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import ConfigError, require
from gradwire.ops._bits import unpack_bits
from gradwire.ops._checks import check_vector, float32
from gradwire.ops._topk import add_inside, places_of, segments
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["parts_add_decoded"]

Parts = Sequence[Tensor]


def _check(values: Parts, indices: Parts, counts: Parts, levels: Parts, out: Tensor, scale: float) -> None:  # noqa: ARG001
    check_vector("parts_add_decoded.out", out, torch.float32, out)
    lengths = [len(each) for each in (values, indices, counts, levels)]
    require(len(set(lengths)) == 1, "parts_add_decoded", "given as many tensors of each kind", lengths)
    for value, index, count, level in zip(values, indices, counts, levels, strict=True):
        k = index.numel()
        check_vector("parts_add_decoded.indices", index, torch.int16, out)
        check_vector("parts_add_decoded.counts", count, torch.int32, out, segments(out.numel()))
        check_vector("parts_add_decoded.levels", level, torch.float32, out)
        if level.numel() not in (0, 2):
            raise ConfigError(f"parts_add_decoded.levels must be none or two, got {level.numel()}")
        if level.numel():
            check_vector("parts_add_decoded.values", value, torch.uint8, out, -(-k // 8))
        else:
            check_vector("parts_add_decoded.values", value, torch.float32, out, k)


@operation(
    "parts_add_decoded(Tensor[] values, Tensor[] indices, Tensor[] counts, Tensor[] levels, Tensor(a!) out,"
    " float scale) -> ()",
    _check,
)
def parts_add_decoded(values: Parts, indices: Parts, counts: Parts, levels: Parts, out: Tensor, scale: float) -> None:
    """Add part after part: out[index] = out[index] + scale * value. Bytes are as safe as in ``sparse_add_decoded``.

    Args:
        values: for each part float32 of k elements, or, where it has levels, uint8 of ceil(k / 8): bit i says which.
        indices: int16, k: the low 16 bits of the indices.
        counts: int32, ceil(n / 65536): how many of the k lie in each segment of 65536 elements.
        levels: float32: the levels of a clear and of a set bit, or none.
        out: float32, n elements.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out, counts = torch.zeros(5), torch.tensor([2], dtype=torch.int32)
    >>> bits, levels = torch.tensor([0b10], dtype=torch.uint8), torch.tensor([3.0, -3.0])
    >>> parts_add_decoded([bits], [torch.tensor([1, 4], dtype=torch.int16)], [counts], [levels], out, scale=0.5)
    >>> out.tolist()
    [0.0, 1.5, 0.0, 0.0, -1.5]
    """
    for value, index, count, level in zip(values, indices, counts, levels, strict=True):
        if level.numel():
            value = torch.where(unpack_bits(value, index.numel()), level[1], level[0])
        add_inside(out, places_of(count, index), value * float32(scale))


@parts_add_decoded.kernel("CPU")
def _cpu(values: Parts, indices: Parts, counts: Parts, levels: Parts, out: Tensor, scale: float) -> None:
    parts = [
        (value.data_ptr(), index.data_ptr(), count.data_ptr(), level.data_ptr() if level.numel() else 0, index.numel())
        for value, index, count, level in zip(values, indices, counts, levels, strict=True)
    ]
    kernels.parts_add_decoded(parts, out.data_ptr(), scale, out.numel(), torch.get_num_threads())
