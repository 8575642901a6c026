"""Philox4x32-10 as ``gradwire.kernels.philox4x32`` defines it."""

import triton
import triton.language as tl

__all__ = ["philox_table", "philox_words"]


@triton.jit
def philox_words(counter, key, step):
    """The four words of every counter (c, step) under ``key``, each of these in 64 bits."""
    zero = tl.zeros_like(counter)
    upper = zero + step
    word0, word1, word2, word3 = tl.philox(
        zero + key,
        counter.to(tl.uint32),
        (counter >> 32).to(tl.uint32),
        upper.to(tl.uint32),
        (upper >> 32).to(tl.uint32),
    )
    return word0, word1, word2, word3


@triton.jit
def philox_table(counter, key, step):
    """The words of these counters, one row of four for each, as uint32."""
    word0, word1, word2, word3 = philox_words(counter, key, step)
    word = tl.arange(0, 4)[None, :]
    low = tl.where(word == 0, word0[:, None], word1[:, None])
    high = tl.where(word == 2, word2[:, None], word3[:, None])
    return tl.where(word < 2, low, high)
