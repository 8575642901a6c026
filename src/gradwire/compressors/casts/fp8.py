"""8-bit floats with a scale for each block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradwire.compressors.casts._eightbit import EightBit
from gradwire.errors import is_int, require

__all__ = ["FP8"]


@dataclass(frozen=True)
class FP8(EightBit):
    """Scale each block so that its largest magnitude N becomes the format's largest, F, and round to 8-bit floats.

    C(x) = float8(F x / N) N / F, to nearest even.

        e4m3   F = 448     off by at most 2^-4 of an element, or N / 458752 where that is more
        e5m2   F = 57344   off by at most 2^-3 of an element, or N / 7.5e9 where that is more

    Nothing overflows, because of the scale; a NaN or an infinity makes its block NaN on every rank. On Gaussian
    gradients e4m3 loses 2.6 % of the length and e5m2 5.3 %, whatever the block: a float gains nothing from small ones.

    Args:
        format: "e4m3", more precise, or "e5m2", wider.
        block: elements that share a scale, a multiple of 16 in [16, 65536]; each costs 32 bits.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> import torch
        >>> code = FP8(block=16)
        >>> code.layout((32,)).nbytes
        40
        >>> code.decompress(code.compress(torch.tensor([448.0, -17.0, 0.01])), (3,)).tolist()
        [448.0, -16.0, 0.009765625]

    Source:
        P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022; scaled gradients after H. Peng et al., "FP8-LM:
        Training FP8 Large Language Models", 2023.
    """

    format: Literal["e4m3", "e5m2"] = "e4m3"
    block: int = 2048

    name = "fp8"
    fine = True
    reference = "P. Micikevicius et al., FP8 Formats for Deep Learning, 2022; H. Peng et al., FP8-LM, 2023"

    def __post_init__(self) -> None:
        require(self.format in ("e4m3", "e5m2"), "FP8.format", "'e4m3' or 'e5m2'", self.format)
        require(is_int(self.block, 16, 65536, of=16), "FP8.block", "a multiple of 16 in [16, 65536]", self.block)

    @property
    def codebook(self) -> str:
        return self.format

    @property
    def span(self) -> int:
        return self.block
