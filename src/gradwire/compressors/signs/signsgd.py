"""Signs, and the vote of the majority."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.compressors.signs.votes import SignCode

__all__ = ["SignSGD"]


@dataclass(frozen=True)
class SignSGD(SignCode):
    """Send the sign of each element; the optimizer gets the sign of the majority, +1 or -1: 1 bit an element.

    C(g) = +1 where g >= 0, else -1;  result = sign(sum over the ranks of C(g)).

    Nothing of the magnitude arrives, so the learning rate needs to be far smaller than for gradients, about a hundredth
    of it, and parameters that travel dense (``min_numel``) keep the scale of their gradients. A residual would be
    filled with steps of one whatever the gradient's size: with feedback use ``efsignsgd``. A NaN has the code of -1;
    a training step is safe all the same, because the sender's status tells of it.

    Args:
        ties: value of a gradient of zero and of a vote that ends even. "positive": +1, as published, which makes
            untouched rows of an embedding drift, and on 2 workers every element on which they differ: the digits end 4
            to 7 points lower. "zero": 0, for 2 bits an element; take it for an even number of workers. Up to 2048.

    Raises:
        ConfigError: another rule for ties.

    Example:
        >>> import torch
        >>> code = SignSGD()
        >>> code.layout((17,)).nbytes
        3
        >>> code.decompress(code.compress(torch.tensor([0.6, -0.5, 0.0])), (3,)).tolist()
        [1.0, -1.0, 1.0]

    Source:
        J. Bernstein, Y.-X. Wang, K. Azizzadenesheli, A. Anandkumar, "signSGD: Compressed Optimisation for Non-Convex
        Problems", ICML 2018; the vote, J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, "signSGD with Majority
        Vote is Communication Efficient and Fault Tolerant", ICLR 2019.
    """

    name = "signsgd"
    reference = "J. Bernstein et al., signSGD, ICML 2018; with majority vote, ICLR 2019"
