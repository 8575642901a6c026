"""Decoders of methods that read the payloads of all ranks in one pass; a single payload is that of a group of one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.kernels.trits import check_trits, pack_trits, room_for, unpack_trits
from gradwire.vocabulary import Payload

__all__ = ["FreshDecoder", "ManyDecoder", "TritDecoder", "rows_of"]


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

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        # Not by ``add_decoded_many``: a server decodes each push, and every call counts.
        self.add_rows(rows_of(payload), out, scale, fresh=False)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_rows(payloads, out, scale, fresh=False)

    def decode_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_rows(payloads, out, scale, fresh=True)


class TritDecoder(FreshDecoder):
    """A method whose payload is norms and codes, which travel as they are, or five ternary digits to a byte."""

    packing: str

    def pack(self, codes: Tensor, packed: Tensor) -> None:
        """Write the 2-bit codes, which lie in ``packed`` already if they travel as they are."""
        if codes is not packed:
            pack_trits(codes, packed)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        norms, packed = payload
        codes = room_for(packed, out.numel(), self.packing)
        if codes is not packed:
            unpack_trits(packed, codes)
        self.add_rows(rows_of((norms, codes)), out, scale, fresh=False)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        if self.packing == "bits":
            super().add_decoded_many(payloads, out, scale)
        else:
            # One after the other, because digits are unpacked for one payload.
            Compressor.add_decoded_many(self, payloads, out, scale)

    def decode_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        if self.packing == "bits":
            super().decode_many(payloads, out, scale)
        else:
            capabilities.decode_many.default(self, payloads, out, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse bytes that are not five ternary digits.

        Raises:
            WireError: one is larger than 242. Every payload of codes that travel as they are is accepted.
        """
        if self.packing == "trits":
            check_trits(self.name, payload[1])
