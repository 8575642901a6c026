"""Forms in which a payload stores the indices of its elements: k increasing ones below n, in fields whose sizes follow
from both.

In memory places are always blocks: the count of each segment of 65536 elements, and the low 16 bits of each place. A
form that is not ``block`` is made from these and read back into them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import require
from gradwire.kernels.rice import rice_bytes
from gradwire.kernels.segments import read_places, segments, write_places
from gradwire.vocabulary import Field, Payload

__all__ = ["FORMS", "Form", "smallest"]


class Form(ABC):
    """Base of the forms in which indices are written."""

    @abstractmethod
    def fields(self, n: int, k: int) -> tuple[Field, ...]:
        """The fields that hold any ``k`` indices below ``n``."""

    def buffers(self, fields: Payload, n: int, k: int) -> tuple[Tensor, Tensor]:
        """Buffers for counts and indices; if they are the fields themselves, nothing is left to write."""
        device = fields[0].device
        indices = torch.empty(k, dtype=torch.int16, device=device)
        return torch.empty(segments(n), dtype=torch.int32, device=device), indices

    @abstractmethod
    def write(self, counts: Tensor, indices: Tensor, fields: Payload, n: int) -> None:
        """Fill the fields."""

    @abstractmethod
    def read(self, fields: Payload, n: int, k: int) -> tuple[Tensor, Tensor]:
        """Read counts and indices of one payload; of invalid bytes, as many indices as are valid."""

    def nbits(self, n: int, k: int) -> int:
        return 8 * sum(field.nbytes for field in self.fields(n, k))


class Block(Form):
    """Indices as they lie in memory: 16 bits each, and 32 for each 65536 elements. This is the fastest form."""

    def fields(self, n: int, k: int) -> tuple[Field, ...]:
        return Field("counts", torch.int32, segments(n)), Field("indices", torch.int16, k)

    def buffers(self, fields: Payload, n: int, k: int) -> tuple[Tensor, Tensor]:
        counts, indices = fields
        return counts, indices

    def write(self, counts: Tensor, indices: Tensor, fields: Payload, n: int) -> None:
        return

    def read(self, fields: Payload, n: int, k: int) -> tuple[Tensor, Tensor]:
        return self.buffers(fields, n, k)


MOST_RAW = 2**31
"""Elements whose numbers are no negative ones of 32 bits."""


class Raw(Form):
    """Indices of 32 bits, for readers that are a simple loop."""

    def fields(self, n: int, k: int) -> tuple[Field, ...]:
        require(
            n <= MOST_RAW, "TopK.indices", f"'block' or 'rice' for a tensor of more than {MOST_RAW:,} elements", "raw"
        )
        return (Field("indices", torch.int32, k),)

    def write(self, counts: Tensor, indices: Tensor, fields: Payload, n: int) -> None:
        fields[0].copy_(read_places(indices, counts))

    def read(self, fields: Payload, n: int, k: int) -> tuple[Tensor, Tensor]:
        counts, indices = self.buffers(fields, n, k)
        places = fields[0].long()
        before = places.cummax(0).values[:-1] if k else places
        rising = torch.cat([places[:1] >= 0, places[1:] > before]) & (places < n)
        write_places(places[rising.long().cumprod(0).bool()], indices, counts)
        return counts, indices


class Rice(Form):
    """Golomb-Rice codes of the gaps, within one bit an index of the entropy."""

    def fields(self, n: int, k: int) -> tuple[Field, ...]:
        return (Field("rice", torch.uint8, sum(rice_bytes(n, k))),)

    def write(self, counts: Tensor, indices: Tensor, fields: Payload, n: int) -> None:
        kernels.rice_encode(indices, counts, fields[0], n)

    def read(self, fields: Payload, n: int, k: int) -> tuple[Tensor, Tensor]:
        counts, indices = self.buffers(fields, n, k)
        kernels.rice_decode(fields[0], indices, counts, n)
        return counts, indices


class Bitmap(Form):
    """A bitmap of one bit an element, which is small if more than a third of them is sent."""

    def fields(self, n: int, k: int) -> tuple[Field, ...]:
        return (Field("bitmap", torch.uint8, -(-n // 8)),)

    def write(self, counts: Tensor, indices: Tensor, fields: Payload, n: int) -> None:
        kernels.bitmap_encode(indices, counts, fields[0], n)

    def read(self, fields: Payload, n: int, k: int) -> tuple[Tensor, Tensor]:
        counts, indices = self.buffers(fields, n, k)
        kernels.bitmap_decode(fields[0], indices, counts, n)
        return counts, indices


FORMS: dict[str, Form] = {"block": Block(), "raw": Raw(), "rice": Rice(), "bitmap": Bitmap()}
"""Name to form."""


def smallest(n: int, k: int) -> str:
    """The name of the form that takes the fewest bytes for ``k`` indices below ``n``, of equal ones the first.

    >>> smallest(10_000, 100)
    'rice'
    """
    fitting = [name for name in FORMS if name != "raw" or n <= MOST_RAW]
    return min(fitting, key=lambda name: FORMS[name].nbits(n, k))
