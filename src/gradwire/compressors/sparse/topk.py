"""Exact sparsification to the largest elements, with packed indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.decoders import rows_of
from gradwire.compressors.sparse import ops
from gradwire.compressors.sparse._places import FORMS, Form, smallest
from gradwire.compressors.sparsifier import Sparsifier
from gradwire.errors import WireError, is_float32, require
from gradwire.helpers import count_of
from gradwire.kernels import nonfinite
from gradwire.kernels.segments import check_places
from gradwire.vocabulary import Field, Key, Payload

__all__ = ["TopK"]

_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class TopK(Sparsifier):
    """Send the k elements of largest magnitude and keep the rest; k = max(1, ceil(ratio n)).

    C(x) = x on the k largest |x|, 0 elsewhere:  |C(x) - x|^2 <= (1 - k/n) |x|^2 for every x; with values in bfloat16
    (1 - 2^-16) k/n in place of k/n.

    Ties go to the lower index; NaN counts as largest, so it reaches every rank. With 16-bit values what the rounding
    loses stays in the residual.

    Args:
        ratio: share of the elements that are sent, in (0, 1]. Lower: fewer bytes, and what is left out waits longer in
            the residual.
        values: "float32", "float16" (values above 65504 overflow: the step is dropped) or "bfloat16".
        indices: "block": 16 bits each and 32 for each 65536 elements, the fastest; "rice": Golomb-Rice codes, 8.6 bits
            at a ratio of 0.01; "bitmap": one bit for each of the n elements, for ratios above 0.4; "raw": 32 bits;
            "auto": the smallest of them, decided from n and k.

    Raises:
        ConfigError: the ratio is outside (0, 1], or a name is not one of these.

    Example:
        >>> code = TopK(ratio=0.4)
        >>> code.decompress(code.compress(torch.tensor([1.0, -5.0, 3.0, -2.0, 4.0])), (5,)).tolist()
        [0.0, -5.0, 0.0, 0.0, 4.0]

    Source:
        A. F. Aji, K. Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; S. U. Stich,
        J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """

    ratio: float = 0.01
    values: Literal["float32", "float16", "bfloat16"] = "float32"
    indices: Literal["block", "raw", "rice", "bitmap", "auto"] = "block"

    name = "topk"
    family = "sparsification"
    reference = "A. F. Aji, K. Heafield, EMNLP 2017; S. U. Stich, J.-B. Cordonnier, M. Jaggi, NeurIPS 2018"
    feedback = "required"

    def __post_init__(self) -> None:
        require(is_float32(self.ratio) and 0 < self.ratio <= 1, "TopK.ratio", "in (0, 1]", self.ratio)
        known = isinstance(self.values, str) and self.values in _TYPES
        require(known, "TopK.values", f"one of {', '.join(_TYPES)}", self.values)
        forms = (*FORMS, "auto")
        require(self.indices in forms, "TopK.indices", f"one of {', '.join(forms)}", self.indices)

    @property
    def overflows(self) -> bool:
        """Return whether what is left may be infinite where the gradient is not, as values of 16 bits may be."""
        return self.values != "float32"

    @property
    def headroom(self) -> float:
        """The factor with which an element must stay finite: values in float16 are infinite from 65520 on."""
        return 2.0**128 / 65520 if self.values == "float16" else 2.0**32

    @property
    def takes_pieces(self) -> bool:
        """Return whether pieces can be encoded: unchanged values, and indices as they lie in memory."""
        return self.values == "float32" and self.indices == "block"

    @property
    def contraction(self) -> bool:
        """Return whether the method is a contraction, as with values that have the range of float32."""
        return self.values != "float16"

    def delta(self, n: int) -> float:
        # Rounding to bfloat16 loses at most 2^-8 of a value, and 2^-16 of its square.
        kept = 1.0 - 2.0**-16 if self.values == "bfloat16" else 1.0
        return kept * self.count(n) / n if n else 1.0

    @property
    def value_type(self) -> torch.dtype:
        return _TYPES[self.values]

    def count(self, n: int) -> int:
        """The number k of elements sent of ``n``.

        >>> TopK(ratio=0.07).count(100)
        7
        """
        return count_of(self.ratio, n)

    def slots(self, n: int) -> int:
        return self.count(n)

    def form(self, n: int) -> Form:
        """The form in which the indices of ``n`` elements travel."""
        return FORMS[smallest(n, self.count(n)) if self.indices == "auto" else self.indices]

    def places(self, n: int) -> tuple[Field, ...]:
        return self.form(n).fields(n, self.count(n))

    def select(self, x: Tensor, values: Tensor, places: Payload, key: Key, scale: float = 1.0) -> None:
        form, n = self.form(x.numel()), x.numel()
        counts, indices = form.buffers(places, n, values.numel())
        ops.topk_encode(x, values, indices, counts)
        form.write(counts, indices, places, n)

    def select_feedback(
        self, grad: Tensor, residual: Tensor, values: Tensor, places: Payload, key: Key, status: Tensor | None
    ) -> Payload:
        form, n = self.form(grad.numel()), grad.numel()
        counts, indices = form.buffers(places, n, values.numel())
        ops.topk_encode_feedback(grad, residual, values, indices, counts, status)
        form.write(counts, indices, places, n)
        return counts, indices

    def give_back(self, lost: Tensor, places: Payload, residual: Tensor, status: Tensor | None) -> None:
        counts, indices = rows_of(places)
        ops.sparse_add_decoded(lost.unsqueeze(0), indices, counts, residual, 1.0)
        if status is not None:
            nonfinite(lost, status)

    def scatter(self, values: Tensor, places: Payload, out: Tensor, scale: float) -> None:
        if self.indices == "block":
            counts, indices = places
            ops.sparse_add_decoded(values, indices, counts, out, scale)
            return
        form, n, k = self.form(out.numel()), out.numel(), values.size(1)
        for rank, row in enumerate(values):
            counts, indices = form.read(tuple(field[rank] for field in places), n, k)
            ops.sparse_add_decoded(row.unsqueeze(0), indices.unsqueeze(0), counts.unsqueeze(0), out, scale)

    def check_places(self, places: Payload, n: int) -> None:
        """Refuse indices that are not those of k different elements, or not in the form that this method writes.

        Raises:
            WireError: a count is negative, they do not sum to k, the indices are not increasing and below n, or bits
                are set that mean nothing.
        """
        form = self.form(n)
        counts, indices = form.read(places, n, self.count(n))
        check_places(self.name, counts, indices, n)
        again = tuple(torch.empty_like(field) for field in places)
        form.write(counts, indices, again, n)
        if form is not FORMS["block"] and not all(map(torch.equal, again, places)):
            raise WireError(f"topk {self.indices} indices have bits set that mean nothing")
