"""Decoders of methods that read the payloads of all ranks in one pass; a single payload is that of a group of one."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.vocabulary import Payload

__all__ = ["FreshDecoder", "ManyDecoder", "rows_of"]


def rows_of(payload: Payload) -> Payload:
    """View one payload as those of a group of one."""
    return tuple(field.unsqueeze(0) for field in payload)


class ManyDecoder(Compressor):
    """A method that writes ``add_decoded_many`` alone."""

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_decoded_many(rows_of(payload), out, scale)


class FreshDecoder(ManyDecoder):
    """A method with one operation, which adds payloads to a tensor or overwrites it with their sum."""

    @abstractmethod
    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        """Compute ``out += scale * sum_w D(payloads[w])``, or ``=`` in place of ``+=`` if ``fresh``."""

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_rows(payloads, out, scale, fresh=False)

    def decode_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_rows(payloads, out, scale, fresh=True)
