"""Facts about a compressor that most methods need not declare, each as a function with a default.

A method answers in its own class, by an attribute, a property or a method of the function's name:

    class Mine(Compressor):
        fine = True

        def omega(self, n: int) -> float:
            return 0.5

Then ``capabilities.fine(Mine())`` is True and ``capabilities.omega(Mine(), 100)`` is 0.5. A method that writes neither
has the defaults of this page, and whoever asks need not know the class.
"""

# ruff: noqa: ARG001 (a default answers without looking at what it is asked about)

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import ConfigError
from gradwire.kernels.stored import accumulate_into, mix_into
from gradwire.vocabulary import Key, Payload, State, capability

if TYPE_CHECKING:
    from gradwire.compressors.base import Compressor

__all__ = [
    "MOST_USED",
    "add_decoded_each",
    "add_own",
    "add_own_each",
    "advice",
    "average",
    "bounded",
    "check_world",
    "contraction",
    "decode_many",
    "delta",
    "encode_averaged",
    "encode_momentum",
    "encode_scaled",
    "exact_entries",
    "factorises",
    "fine",
    "for_mean",
    "headroom",
    "identity",
    "in_16_bits",
    "in_rounds",
    "memory",
    "omega",
    "overflows",
    "pays_for",
    "plain_dtype",
    "portable",
    "properties",
    "rounds_needed",
    "rounds_only",
    "same_method",
    "settle",
    "settles",
    "spreads",
    "sums_in",
    "takes_pieces",
    "tells_nonfinite",
    "traffic",
    "used_on_host",
    "votes",
]

MOST_USED = 2**31 - 1
"""Bytes of a stream of variable size."""

_ENCODES = ("encode", "encode_scaled", "encode_feedback", "encode_momentum")
_DECODES = ("add_decoded", "add_decoded_many", "decode_many")


# Quality: what the method does to a gradient.


@capability()
def fine(code: Compressor) -> bool:
    """Return whether the part of a gradient that a step does not send is small, so that optimizers that divide by the
    size of recent gradients work well with a residual of it; ``gradwire.testing.adaptive`` measures it.
    """
    return False


@capability()
def spreads(code: Compressor) -> bool:
    """Return whether zeros arrive as noise that is not small beside other elements: an optimizer that divides each
    element by its own size makes steps of it.
    """
    return False


@capability()
def bounded(code: Compressor) -> str:
    """The form of this method, or another method, that is safe with a residual if ``feedback`` is "unsafe"."""
    return ""


@capability()
def contraction(code: Compressor) -> bool:
    """Return whether E|C(x) - x|^2 <= (1 - delta)|x|^2 holds for a delta > 0, which ``delta`` gives: where a method has
    a ``delta`` of its own, unless it says otherwise.
    """
    return delta.declared(code)


@capability()
def delta(code: Compressor, n: int) -> float:
    """The contraction constant for ``n`` elements, in (0, 1]; 0 if none is known."""
    return 0.0


@capability()
def omega(code: Compressor, n: int) -> float:
    """The variance factor of an unbiased method: E|C(x) - x|^2 <= omega |x|^2; infinite if none is known."""
    return math.inf


@capability()
def overflows(code: Compressor) -> bool:
    """Return whether x - D(encode(x)) may be infinite or NaN where x is finite."""
    return True


@capability()
def headroom(code: Compressor) -> float:
    """The factor with which an element must stay finite, or it counts as not finite where nobody looks at what was
    decoded, because squares, products or sums may overflow there.
    """
    return 2.0**32


@capability()
def portable(code: Compressor) -> bool:
    """Return whether a payload has the same bits on every machine.

    Not where matrices are multiplied: a product's last bits belong to the BLAS, so frozen payloads are compared as
    numbers. Nor where ranks average in rounds, because most of these methods multiply matrices.
    """
    return not in_rounds(code)


@capability()
def factorises(code: Compressor) -> bool:
    """Return whether ``encode`` decomposes the gradient, or searches estimates of all its elements, in room of the
    gradient's size.
    """
    return False


# Its payload, and what becomes of it.


@capability()
def plain_dtype(code: Compressor) -> torch.dtype | None:
    """The type of the elements, if a payload is the elements themselves; None: it is made of codes."""
    return None


@capability()
def identity(code: Compressor) -> bool:
    """Return whether nothing is compressed: D(encode(x)) = x and the payload is x, so gradients travel as they are."""
    return plain_dtype(code) is torch.float32


@capability(of=(*_ENCODES, *_DECODES))
def sums_in(code: Compressor, dtype: torch.dtype) -> bool:
    """Return whether the payload of gradients of this dtype is the gradients themselves, which are summed in it.

    Then a bucket may be averaged where it lies, without a payload.
    """
    return False


@capability()
def average(code: Compressor) -> bool:
    """Return whether the result is the mean of what the ranks' payloads decode to.

    If not, it is their sum, or whatever else ``add_decoded_many`` makes of all of them; summed payloads are then not
    divided by the world size.
    """
    return True


@capability()
def exact_entries(code: Compressor) -> bool:
    """Return whether the payload is the values of some elements in float32, how many each segment of 65536 has, and the
    low 16 bits of their increasing indices: entries that a strategy can add up.
    """
    return False


@capability()
def memory(code: Compressor) -> str | None:
    """The memory that the method is defined with; None: what ``feedback`` needs."""
    return None


@capability()
def advice(code: Compressor) -> int:
    """The number of float32 that the ranks keep agreeing on, such as a threshold.

    ``encode`` leaves this rank's wish, finite, in ``state["advice"]`` and finds in ``state["agreed"]`` the mean over
    the ranks of their wishes in an earlier step, NaN before the first. They travel with the uncompressed parameters of
    the next step, so they cost no message.
    """
    return 0


@capability()
def settle(code: Compressor, mean: Tensor) -> None:
    """Turn the mean of the decoded payloads into what the optimizer gets, in place: a vote takes its sign.

    It runs once on every element, on each rank alike or by the owner of a shard, who compresses the result again:
    what it leaves must be a fixed point of the method's own code.
    """
    return


@capability()
def settles(code: Compressor) -> bool:
    """Return whether the mean is not what the optimizer gets, because ``settle`` is the method's own."""
    return settle.declared(code)


@capability()
def votes(code: Compressor) -> bool:
    """Return whether ``settle`` makes something else of the mean, such as its sign: what arrives is no estimate of a
    gradient.
    """
    return False


@capability()
def for_mean(code: Compressor) -> Compressor:
    """The compressor that encodes a mean again; another one where this one would add too much noise to it.

    The noise of the ranks' own codes is averaged over the ranks. That of a mean reaches all of them as it is.
    """
    return code


@capability()
def in_16_bits(code: Compressor) -> Compressor:
    """Return the form of this method whose residual may be kept in 16 bits; the same payloads cross the network.

    Raises:
        ConfigError: there is no such form. The residual of a mean of several rounds grows by a rank's difference from
            the others, unless the method tells its own part: the mean is a small difference of these, and a sum that
            is rounded to 8 bits loses it.
    """
    if in_rounds(code) and not add_own.declared(code):
        raise ConfigError(
            f"the residual of {code.name!r} must be float32, got fewer bits: it also collects how the ranks' "
            "gradients differ, without bound; leave residual_dtype out, or use powersgd"
        )
    return code


@capability()
def same_method(code: Compressor, other: Compressor) -> bool:
    """Return whether the other is this method, with whatever parameters."""
    return type(code) is type(other)


# Bytes and ranks.


@capability()
def traffic(code: Compressor, shape: Sequence[int]) -> float:
    """The bytes of a payload that cross the network, as the mean over many steps; those of the layout if all of it
    travels.
    """
    return float(code.layout(shape).nbytes)


@capability()
def pays_for(code: Compressor, shape: Sequence[int]) -> bool:
    """Return whether the payload of a tensor of this shape is smaller than the tensor; if not, it travels dense.

    So does a tensor whose stream of variable size may have more bytes than the int32 ``used`` can say.
    """
    n = math.prod(shape)
    if n == 0:
        return False
    layout = code.layout(shape)
    return layout.nbytes < 4 * n if code.fixed_size else layout.fields[-1].count <= MOST_USED


@capability()
def check_world(code: Compressor, world: int) -> None:
    """Refuse a number of workers whose sum does not fit into the payload; most methods serve any number.

    Args:
        code: method of the workers.
        world: workers whose payloads are summed as integers, >= 1.

    Raises:
        ConfigError: the sum does not fit; the message names the parameter and the largest value that fits.
    """
    return


# How fast engines may take it.


@capability(of=(*_ENCODES, *_DECODES, "settle"))
def takes_pieces(code: Compressor) -> bool:
    """Return whether all that encodes, decodes and settles takes ``gradwire.kernels.Pieces`` in place of tensors, as
    operations do: then the pieces of a message are worked on in one call. They are flat; ``Pieces.shapes`` are the
    shapes of the tensors.
    """
    return False


@capability(of=("encode", "encode_scaled"))
def tells_nonfinite(code: Compressor) -> bool:
    """Return whether a payload has an infinity or a NaN where what was encoded has: also the sum of such payloads tells
    of it.
    """
    return False


@capability()
def used_on_host(code: Compressor) -> bool:
    """Return whether a decoder of variable size reads ``used`` on the host alone.

    Where it is known there it may be given as a tensor of the CPU among those of another device, so that nothing waits
    for it.
    """
    return False


@capability()
def encode_scaled(code: Compressor, x: Tensor, scale: float, payload: Payload, state: State, key: Key) -> None:
    """Encode ``scale * x``; ``x`` stays as it is. Only summable methods are asked."""
    code.encode(x * scale, payload, state, key)


@capability()
def encode_momentum(
    code: Compressor,
    grad: Tensor,
    momentum: Tensor,
    beta: float,
    payload: Payload,
    state: State,
    key: Key,
    status: Tensor | None = None,
) -> None:
    """Mix a gradient into a running mean and encode that: momentum = beta * momentum + (1 - beta) * grad.

    Args:
        code: method that encodes.
        grad: gradient of this rank. Unchanged without ``status``.
        momentum: overwritten.
        beta: weight of the old momentum, in [0, 1).
        payload: written.
        state: tensors that the method keeps.
        key: key of the random numbers.
        status: int32, 1 element, or None, as in ``encode_feedback``; ``grad`` receives the old momentum.
    """
    kernels.momentum_update(grad, momentum, beta, status)
    code.encode(momentum, payload, state, key)


@capability()
def encode_averaged(
    code: Compressor,
    grad: Tensor,
    error: Tensor,
    weight: float,
    share: float,
    payload: Payload,
    state: State,
    key: Key,
    status: Tensor,
    scale: float = 1.0,
) -> None:
    """Add a running sum of earlier errors to a gradient, encode that, and take the new error into the sum.

    x = grad + weight * error, the payload is that of scale * x, and error = share * error + x - D(payload) / scale.

    Args:
        code: method that encodes.
        grad: gradient of this rank; becomes the old error.
        error: stored in any form that ``gradwire.kernels.stored`` knows; overwritten.
        weight: weight of the errors in x.
        share: share of the errors that stays.
        payload: written.
        state: tensors that the method keeps.
        key: key of the random numbers.
        status: int32 of one element; bit 0 is set as in ``encode_feedback``.
        scale: 1 except for summable methods.
    """
    accumulate_into(grad, error, weight)
    if scale != 1.0:
        grad.mul_(scale)
    kernels.nonfinite(grad.view(-1), status)
    code.encode(grad, payload, state, key)
    code.add_decoded(payload, grad, -1.0)
    if scale != 1.0:
        grad.mul_(1.0 / scale)
    # x - D(p) is not finite where D(p) overflowed, too.
    kernels.nonfinite(grad.view(-1), status)
    mix_into(error, share, grad)


@capability(of=("add_decoded", "add_decoded_many"))
def decode_many(code: Compressor, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
    """Compute ``out = scale * sum_w D(payloads[w])``, whatever ``out`` was; a method's own is faster, because ``out``
    need not be read.
    """
    kernels.fill_where(out, 0.0)
    code.add_decoded_many(payloads, out, scale)


# Methods of several rounds.


@capability()
def in_rounds(code: Compressor) -> bool:
    """Return whether the payload is complete only after the ranks reduced parts of it: ``MultiRound``."""
    return False


@capability()
def rounds_needed(code: Compressor) -> int:
    """The number of times that ranks must average before the payload is complete."""
    return 1


@capability()
def rounds_only(code: Compressor) -> tuple[str, ...]:
    """The fields that only rounds read, or this rank alone: ``add_decoded`` does without them.

    A worker that runs its rounds alone and sends the payload to a server leaves them out.
    """
    return ()


@capability()
def add_own(code: Compressor, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
    """Compute ``out += scale *`` this rank's part in the result: the part that its residual no longer needs to keep.

    By default that is the mean itself, and a residual also keeps how this rank differs from the others.
    """
    code.add_decoded(payload, out, scale)


@capability(of=("add_own", "add_decoded"))
def add_own_each(code: Compressor, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
    """Call ``add_own`` for every tensor of a bucket."""
    if not add_own.declared(code):
        add_decoded_each(code, payloads, outs, scale)
        return
    for payload, out in zip(payloads, outs, strict=True):
        add_own(code, payload, out, scale)


@capability(of=("add_decoded",))
def add_decoded_each(code: Compressor, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
    """Call ``add_decoded`` for every tensor of a bucket."""
    for payload, out in zip(payloads, outs, strict=True):
        code.add_decoded(payload, out, scale)


def properties(code: Compressor) -> dict[str, Any]:
    """Return what tables show of a method, for ``gradwire methods`` and the docs."""
    return {
        "name": code.name,
        "family": code.family,
        "params": {k: v for k, v in code.to_config().items() if k != "name"},
        "summable": code.summable,
        "unbiased": code.unbiased,
        "contraction": contraction(code),
        "random": code.random,
        "elementwise": code.elementwise,
        "fixed_size": code.fixed_size,
        "feedback": code.feedback,
        "rounds": rounds_needed(code),
        "alignment": code.alignment,
        "bits_per_element": round(8 * traffic(code, (1024, 1024)) / 2**20, 4),
        "reference": code.reference,
    }
