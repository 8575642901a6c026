"""The units that a seed chooses, as ``gradwire.ops._randomk`` defines them: one of each stratum."""

import triton
import triton.language as tl

from gradwire.ops.triton._philox import philox_words

__all__ = ["chosen"]


@triton.jit
def chosen(
    stratum: tl.tensor, seed: tl.tensor, units: tl.tensor, k: tl.tensor, run: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """The first element of the unit chosen in each stratum, and how many units the stratum has, in 64 bits."""
    word0, word1, word2, word3 = philox_words(stratum // 4, seed, 0)
    lane = stratum % 4
    word = tl.where(lane < 2, tl.where(lane == 0, word0, word1), tl.where(lane == 2, word2, word3)).to(tl.int64)
    begin = stratum * units // k
    size = (stratum + 1) * units // k - begin
    return (begin + (word * size >> 32)) * run, size
