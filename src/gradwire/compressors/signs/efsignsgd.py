"""Signs with the mean magnitude of their block."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.compressors.signs import ops
from gradwire.compressors.signs.blocks import BlockSigns

__all__ = ["EFSignSGD"]


@dataclass(frozen=True)
class EFSignSGD(BlockSigns):
    """Send each element's sign and each block's mean magnitude, and keep the rest: 1 bit an element.

    C(x) = (|x_b|_1 / B) sign(x), sign(0) = +1, for each block b of B elements.

    What is lost is known exactly: |C(x) - x|^2 = |x|^2 - |x|_1^2 / B in a block; 0.364 |x|^2 of normal elements.

    The paper compresses m + lr g and divides nothing; the default memory compresses m + g, in the gradient's unit,
    which is the same while the learning rate is constant. Under a schedule what is left of an old gradient is applied
    with the new rate. For the paper's form pass ``memory=Residual(gamma=lr)`` and let the optimizer's rate be relative
    to that: the mean that arrives is lr times a gradient. The result is a mean, from the first step on.

    Args:
        block: B, a multiple of 32 in [32, 65536]; each block costs 32 bits. Smaller: less error, more bytes.

    Raises:
        ConfigError: the block is outside its range.

    Example:
        >>> import torch
        >>> code = EFSignSGD()
        >>> code.layout((3000,)).nbytes
        383
        >>> code.decompress(code.compress(torch.tensor([-2.0, -1.0, 1.0, 3.0])), (4,)).tolist()
        [-1.75, -1.75, 1.75, 1.75]

    Source:
        S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient
        Compression Schemes", ICML 2019; by blocks and in both directions, S. Zheng, Z. Huang, J. Kwok,
        "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback", NeurIPS 2019.
    """

    block: int = 2048

    name = "efsignsgd"
    takes_pieces = True
    reference = "S. P. Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019; S. Zheng et al., NeurIPS 2019"
    numbers = ("scales", 1)
    operations = (ops.scaled_sign_encode, ops.scaled_sign_encode_feedback, ops.scaled_sign_add_decoded)
