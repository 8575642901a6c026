"""A cast to IEEE half precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradwire.compressors.casts._float_cast import Cast

__all__ = ["FP16"]


@dataclass(frozen=True)
class FP16(Cast):
    """Send every element in float16: 16 bits an element, 11 of them significant.

    C(x) = round(x) to binary16: |C(x) - x| <= 2^-11 |x| for 6.1e-5 <= |x| <= 65504.

    Below that range the error is up to 2^-25, so elements under 3e-8 vanish: scale the loss, or use ``bf16``. Above
    it the code is infinite, and with feedback the step is reported as non-finite. Over all of float32 this is no
    contraction, for both reasons.

    Example:
        >>> FP16().decompress(FP16().compress(torch.tensor([1.0, 0.1, 1e-9])), (3,)).tolist()
        [1.0, 0.0999755859375, 0.0]

    Source:
        A. Sergeev, M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018
        (``Compression.fp16``).
    """

    name = "fp16"
    fine = True
    family = "cast"
    reference = "A. Sergeev, M. Del Balso, Horovod, 2018 (Compression.fp16)"
    dtype = torch.float16
    # From 65520 on the code is infinite.
    headroom = 2.0**128 / 65520
