"""Elements and blocks that a program works on."""

import triton
import triton.language as tl

__all__ = ["begin_sum_at", "blocks", "elements", "number"]


@triton.jit
def number(program):
    """The number of this program, in 64 bits: the given one, or that of the launch if it is None."""
    own = tl.program_id(0) if program is None else program
    return own.to(tl.int64)


@triton.jit
def elements(BLOCK: tl.constexpr, program=None):
    """The indices of this program's elements, in 64 bits: a gradient may have more than 2**31."""
    return number(program) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def blocks(ROWS: tl.constexpr, program=None):
    """The indices of this program's blocks, in 64 bits."""
    return number(program) * ROWS + tl.arange(0, ROWS)


@triton.jit
def begin_sum_at(out, i, n, FRESH: tl.constexpr):
    """The sums at ``i`` before the payloads are added: what ``out`` holds, or zeros if ``FRESH``."""
    total = tl.zeros_like(i).to(tl.float32)
    if not FRESH:
        total = tl.load(out + i, mask=i < n)
    return total
