"""Facts about a memory that most memories need not declare, each as a function with a default.

A memory answers in its own class, by an attribute, a property or a method of the function's name, as a compressor does
in ``gradwire.compressors.capabilities``.
"""

# ruff: noqa: ARG001 (a default answers without looking at what it is asked about)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from gradwire import kernels
from gradwire.vocabulary import capability

if TYPE_CHECKING:
    from gradwire.compressors.base import Compressor
    from gradwire.memory.base import Memory

__all__ = [
    "begin",
    "begin_or_undo",
    "beta_is_momentum",
    "check_compressor",
    "compensate_each",
    "dense",
    "finish",
    "follows_mean",
    "keeps_mean",
    "keeps_nothing",
    "one_round",
    "plain",
    "residual_is_momentum",
    "returned",
    "takes_dtype",
    "takes_pieces",
    "tensorwise",
]


# What it keeps.


@capability(of=("encode", "encoded", "rollback", "buffers"))
def keeps_nothing(memory: Memory) -> bool:
    """Return whether the gradient itself is encoded."""
    return False


@capability(
    of=("encode", "encoded", "rollback", "compensate", "update", "begin", "finish", "returned", "buffers"),
)
def plain(memory: Memory) -> bool:
    """Return whether what is not sent is added to the next gradient, or lost, element by element, and nothing else is
    done: the memory of several tensors side by side is that of one.
    """
    return False


@capability()
def residual_is_momentum(memory: Memory) -> bool:
    """Return whether what is kept in ``residual`` is a momentum, and no part of the parameters' change."""
    return False


@capability()
def takes_dtype(memory: Memory | type[Memory]) -> bool:
    """Return whether the memory has a parameter ``dtype``, in which it stores what it keeps."""
    return False


@capability()
def beta_is_momentum(memory: Memory | type[Memory]) -> bool:
    """Return whether the parameter ``beta`` is what other libraries call momentum."""
    return False


@capability()
def dense(memory: Memory) -> Memory | None:
    """The memory for parameters that travel uncompressed; None if there is nothing to do for them.

    Its ``buffers`` are among this memory's, so that a parameter may begin dense and go on compressed.
    """
    return None


# What it serves.


@capability()
def check_compressor(memory: Memory, compressor: Compressor) -> None:
    """Refuse a compressor with which this memory would lose gradients, with the reason and the remedy.

    Raises:
        ConfigError: the compressor does not suit the memory.
    """
    return


@capability()
def one_round(memory: Memory) -> bool:
    """Return whether only methods of one round are served: ``compensate`` and ``update`` refuse."""
    return False


@capability()
def tensorwise(memory: Memory) -> bool:
    """Return whether what becomes of an element depends on the others of its parameter, by a mean or a norm: then
    parameters are not joined, or it would depend on the buckets.
    """
    return False


@capability(of=("encode", "rollback", "update", "begin", "finish"))
def takes_pieces(memory: Memory, scale: float) -> bool:
    """Return whether ``encode`` with this scale, ``rollback``, ``update`` and ``begin`` take
    ``gradwire.kernels.Pieces``.

    Then ``rollback`` has a third argument, ``when``: bool, one element, or None for always.
    """
    return False


@capability(of=("compensate",))
def compensate_each(memory: Memory, grads: Sequence[Tensor], kept: Sequence[Mapping[str, Tensor]]) -> None:
    """Call ``compensate`` for every tensor of a bucket."""
    for grad, each in zip(grads, kept, strict=True):
        memory.compensate(grad, each)


# What it sees of the mean.


@capability()
def follows_mean(memory: Memory) -> bool:
    """Return whether what is compressed depends on the mean that arrived before: every worker must hear it, and all of
    it.
    """
    return False


@capability()
def begin(memory: Memory, out: Tensor, kept: Mapping[str, Tensor]) -> None:
    """Prepare ``out``, to which the decoded payloads of all ranks will be added."""
    kernels.fill_where(out.view(-1), 0.0)


@capability()
def finish(memory: Memory, out: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
    """Observe the result in ``out``; ``kept`` must not change if ``bad`` (bool, one element)."""
    return


@capability()
def keeps_mean(memory: Memory) -> bool:
    """Return whether something is kept of the mean that arrives, because ``begin`` or ``finish`` is the memory's
    own.
    """
    return begin.declared(memory) or finish.declared(memory)


@capability(of=("encode", "rollback"))
def begin_or_undo(memory: Memory, out: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
    """Do ``rollback`` if ``bad``, and then ``begin``, with NaN if ``bad``: where nothing may wait for the flag.

    Only of memories that take pieces, and do not keep the mean.

    Args:
        memory: memory that encoded.
        out: gradient as ``encode`` left it.
        kept: kept tensors as ``encode`` left them.
        bad: bool, one element.
    """
    memory.rollback(out, kept, bad)  # type: ignore[call-arg]
    kernels.begin_sum(out.view(-1), None, bad)


@capability()
def returned(memory: Memory, grad: Tensor, kept: Mapping[str, Tensor], places: Tensor, values: Tensor) -> None:
    """Keep the values of a payload of exact entries again, because nobody received it.

    A strategy that may drop entries of payloads refuses a balanced memory without this.

    Args:
        memory: memory that encoded.
        grad: gradient as ``encode`` left it.
        kept: kept tensors as ``encode`` left them.
        places: int64, of the flattened gradient.
        values: float32, what the payload said there.
    """
    return
