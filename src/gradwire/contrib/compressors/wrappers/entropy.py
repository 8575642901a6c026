"""Lossless coding of another method's codes in fewer bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor, Feedback
from gradwire.compressors.wrappers.around import Wrapper, declare_as, groups
from gradwire.contrib.compressors.wrappers._coders import CODERS, read_section, write_section
from gradwire.errors import WireError, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State, align

__all__ = ["Entropy"]


@dataclass(frozen=True)
class Entropy(Wrapper):
    """Send the payload of ``inner`` with its one-byte fields entropy-coded: C(x) is that of ``inner``, bit for bit.

    Bytes of probability p cost about log2(1 / p) bits: for Gaussian gradients ``qsgd`` with the l2 norm falls from 4
    bits an element to about 1.1, ternary codes from 2 to 1.2 or less; codes relative to the largest element hardly, and
    signs not at all. Where coding does not pay, the bytes travel as they are: never more than 4 bytes and one for each
    coded field beside the inner payload. The size depends on the values, so payloads travel by all-gather or broadcast.

    Args:
        inner: a method of one round and fixed size, such as ``QSGD(norm="l2")``.
        coder: "rans" reaches the entropy; "huffman" spends whole bits on a byte, at least one; "elias" needs no
            counting but of ranks: 2 floor(log2 rank) + 1 bits for the byte of that rank.

    Raises:
        ConfigError: an inner method of several rounds or of variable size, an unknown coder.

    Example:
        >>> code = Entropy(inner=registry.build("compressors", "twobit"))
        >>> x = torch.zeros(4096)
        >>> x[::64] = 1.0
        >>> buffer = code.compress(x)
        >>> buffer[:4].view(torch.int32).item(), code.layout((4096,)).nbytes
        (105, 1029)
        >>> torch.equal(code.decompress(buffer, (4096,)), x / 2)
        True

    Source:
        J. Duda, "Asymmetric numeral systems", arXiv:1311.2540, 2013; R. R. Gajjala, S. Banchhor, A. M. Abdelmoniem, A.
        Dutta, M. Canini, P. Kalnis, "Huffman Coding Based Encoding Techniques for Fast Distributed Deep Learning",
        DistributedML 2020; P. Elias, "Universal codeword sets", IEEE Transactions on Information Theory, 1975.
    """

    inner: Compressor = field(default_factory=lambda: registry.build("compressors", "qsgd", {"norm": "l2"}))
    coder: Literal["rans", "huffman", "elias"] = "rans"

    name = "entropy"
    family = "wrapper"
    reference = "J. Duda, 2013; R. R. Gajjala et al., DistributedML 2020; P. Elias, 1975"
    fixed_size = False

    def __post_init__(self) -> None:
        inner = self.inner
        ok = isinstance(inner, Compressor) and inner.fixed_size and not capabilities.in_rounds(inner)
        require(ok, "Entropy.inner", "a method of one round and fixed size", inner)
        require(capabilities.average(inner), "Entropy.inner", "a method whose payloads are averaged one by one", inner)
        known = isinstance(self.coder, str) and self.coder in CODERS
        require(known, "Entropy.coder", "'rans', 'huffman' or 'elias'", self.coder)
        own = "unbiased", "random", "elementwise", "memory", "advice", "portable", "factorises", "votes", "settles"
        declare_as(inner, self, *own, "headroom")

    def same_method(self, other: Compressor) -> bool:
        return isinstance(other, Entropy) and capabilities.same_method(self.inner, other.inner)

    @property
    def feedback(self) -> Feedback:
        return self.inner.feedback

    @property
    def bounded(self) -> str:
        return f"Entropy(inner={capabilities.bounded(self.inner)}, coder={self.coder!r})"

    @property
    def contraction(self) -> bool:
        return capabilities.contraction(self.inner)

    @property
    def fine(self) -> bool:
        return capabilities.fine(self.inner)

    def layout(self, shape: Sequence[int]) -> Layout:
        fields = self.inner.layout(shape).fields
        room = sum(field.count + 1 for field in fields if is_coded(field))
        kept = (field for field in fields if not is_coded(field))
        return Layout((Field("used", torch.int32, 1), *kept, Field("stream", torch.uint8, room)))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        inner = self._room(x.shape, x.device)
        self.inner.encode(x, inner, state, key)
        self._pack(inner, payload, x.shape)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        inner = self._room(grad.shape, grad.device)
        self.inner.encode_feedback(grad, residual, inner, state, key, status)
        self._pack(inner, payload, grad.shape)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.inner.add_decoded(self._unpack(payload, out.shape), out, scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        """Decode the codes of several ranks first, so that they are added in one pass over ``out``."""
        layout = self.inner.layout(out.shape)
        if not layout.nbytes:
            super().add_decoded_many(payloads, out, scale)
            return
        for ranks in groups(payloads[0].shape[0], layout.nbytes):
            rows = torch.empty(len(ranks), align(layout.nbytes), dtype=torch.uint8, device=out.device)
            for rank, row in zip(ranks, rows, strict=True):
                own = tuple(field[rank] for field in payloads)
                self._unpack_into(layout.views(row[: layout.nbytes]), own, out.shape)
            self.inner.add_decoded_many(layout.views(rows[:, : layout.nbytes]), out, scale)

    def settle(self, mean: Tensor) -> None:
        capabilities.settle(self.inner, mean)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse a stream that does not decode to a payload of the inner method.

        Raises:
            WireError: a table, a size or a chunk that does not add up, or what the inner method refuses.
        """
        self.inner.check_payload(self._unpack(payload, shape), shape)

    def _room(self, shape: Sequence[int], device: torch.device) -> Payload:
        layout = self.inner.layout(shape)
        return layout.views(torch.empty(layout.nbytes, dtype=torch.uint8, device=device))

    def _split(self, inner: Payload, shape: Sequence[int]) -> Iterator[tuple[bool, Tensor]]:
        for field_, tensor in zip(self.inner.layout(shape).fields, inner, strict=True):
            yield is_coded(field_), tensor

    def _pack(self, inner: Payload, payload: Payload, shape: Sequence[int]) -> None:
        (used, *kept, stream), end = payload, 0
        for coded, tensor in self._split(inner, shape):
            if not coded:
                kept.pop(0).copy_(tensor)
                continue
            room = stream[end : end + tensor.numel() + 1]
            end += write_section(tensor.view(torch.uint8), room, CODERS[self.coder])
        used.fill_(end)

    def _unpack(self, payload: Payload, shape: Sequence[int]) -> Payload:
        return self._unpack_into(self._room(shape, payload[0].device), payload, shape)

    def _unpack_into(self, inner: Payload, payload: Payload, shape: Sequence[int]) -> Payload:
        used, *kept, stream = payload
        start, end = 0, int(used)
        if not 0 <= end <= stream.numel():
            raise WireError(f"an entropy payload of {stream.numel()} bytes claims to use {end}")
        for coded, tensor in self._split(inner, shape):
            if coded:
                start += read_section(stream[start:end], tensor.view(torch.uint8))
            else:
                tensor.copy_(kept.pop(0))
        if start != end:
            raise WireError(f"an entropy payload uses {end} bytes, but its sections have {start}")
        return inner


def is_coded(field: Field) -> bool:
    """Return whether a field holds codes: one of a byte an item does, and others hold numbers, whose bytes are nearly
    random.
    """
    return field.dtype.itemsize == 1 and field.count > 0
