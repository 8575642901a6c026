"""The moments of a tensor by segments, from which the norm of the whole tensor is made.

One row for each segment of ``SEGMENT`` elements: the largest magnitude, the origin, the sum of the distances d from it,
the sum of d * d; float32, added up in the order in which the lanes of a kernel do it. Distances from an element of the
segment itself keep the variance exact where the spread is far below the mean: of a constant it is exactly zero. Both
sums are of d / 2^e: e is 0 while the largest magnitude lies between 2^-40 and 2^41, else its own exponent, so that
squares neither vanish nor overflow.
"""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._units import exponent_of, power_of_two

__all__ = ["SEGMENT", "check_table", "lane_sums", "segments", "units_of", "write_moments"]

SEGMENT = 4096
_LANES = 16
_USUAL = 40


def segments(n: int) -> int:
    """How many rows the moments of ``n`` elements have."""
    return -(-n // SEGMENT)


def check_table(op: str, table: Tensor, x: Tensor) -> None:
    check_vector(f"{op}.table", table, torch.float32, x, 4 * segments(x.numel()))


def write_moments(x: Tensor, table: Tensor, centred: bool) -> None:
    """Fill the table, row after row."""
    n, rows = x.numel(), table.view(-1, 4)
    parts = torch.nn.functional.pad(x, (0, -n % SEGMENT)).view(-1, SEGMENT)
    rows[:, 0] = (parts.view(torch.int32) & 0x7FFFFFFF).amax(1).view(torch.float32)
    rows[:, 1] = parts[:, 0] if centred else 0.0
    inside = torch.arange(parts.numel(), device=x.device).view_as(parts) < n
    smaller = power_of_two(-_exponents(rows[:, 0])).unsqueeze(1)
    distance = ((parts - rows[:, 1:2]) * smaller).masked_fill_(~inside, 0.0)
    rows[:, 2], rows[:, 3] = lane_sums(distance), lane_sums(distance * distance)


def units_of(largest: Tensor) -> Tensor:
    """2^e for each row, from its largest magnitude: the unit of its sum of distances, squared that of its squares."""
    return power_of_two(_exponents(largest))


def _exponents(largest: Tensor) -> Tensor:
    exponents = exponent_of(largest)
    return torch.where(exponents.abs() <= _USUAL, 0, exponents)


def lane_sums(parts: Tensor) -> Tensor:
    """The sum of each row, in the order of a kernel with 16 lanes."""
    lanes = parts.new_zeros(parts.size(0), _LANES)
    for step in parts.view(parts.size(0), parts.size(1) // _LANES, _LANES).unbind(1):
        lanes += step
    for half in (8, 4, 2, 1):
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes.squeeze(1)
