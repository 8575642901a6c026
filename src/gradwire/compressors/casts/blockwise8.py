"""Eight bits an element with a scale for each block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradwire.compressors.casts._eightbit import EightBit
from gradwire.errors import is_int, require

__all__ = ["Blockwise8"]


@dataclass(frozen=True)
class Blockwise8(EightBit):
    """Divide each block by its largest magnitude N and send the nearest of 256 values.

        linear    C(x) = q N / 127, q = round(127 x / N)        |C(x) - x| <= 0.00394 N
        dynamic   C(x) = N T[c], T the map of ``dynamic8``      |C(x) - x| <= 0.00704 N

    On Gaussian gradients linear loses 0.8 % of the length and dynamic 1.3 %, in blocks of 2048; dynamic keeps elements
    of a millionth of the largest, of which linear makes zeros from 1/254 on.

    Args:
        kind: "linear" or "dynamic".
        block: elements that share a scale, a multiple of 16 in [16, 65536]; each costs 32 bits. Smaller: less noise.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> import torch
        >>> code = Blockwise8(block=16)
        >>> code.layout((32,)).nbytes
        40
        >>> code.decompress(code.compress(torch.tensor([127.0, -3.2, 0.0])), (3,)).tolist()
        [127.0, -3.0, 0.0]

    Source:
        T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer, "8-bit Optimizers via Block-wise Quantization", ICLR 2022.
    """

    kind: Literal["linear", "dynamic"] = "linear"
    block: int = 2048

    name = "blockwise8"
    fine = True
    reference = "T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer, 8-bit Optimizers via Block-wise Quantization, 2022"

    def __post_init__(self) -> None:
        require(self.kind in ("linear", "dynamic"), "Blockwise8.kind", "'linear' or 'dynamic'", self.kind)
        require(is_int(self.block, 16, 65536, of=16), "Blockwise8.block", "a multiple of 16 in [16, 65536]", self.block)

    @property
    def codebook(self) -> str:
        return self.kind

    @property
    def span(self) -> int:
        return self.block
