"""Payloads between workers and servers: the bytes that travel, and the checks before they are decoded.

A method of several rounds averages parts of its payload between the workers. Here each worker runs its rounds alone,
where every average is the value itself, and the fields that only the rounds read are not sent. The payload decodes to
what the one worker sent, as with any other method, and the server adds it up. P and Q of ``powersgd`` are those of this
worker's own gradient.

Failure modes:
    A method whose payload would then be as large as the gradient is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError
from gradwire.vocabulary import Layout, Payload
from gradwire.wire import sent_nbytes

__all__ = ["layout_of", "received", "require_alone", "sent", "sent_layout", "sizes", "views"]

TRIED = (1024, 1024)
"""A matrix on which a method must save something."""


def sent_layout(compressor: Compressor, shape: Sequence[int]) -> Layout:
    """Compute the layout of the bytes of a payload that travel.

    >>> from gradwire.compressors.lowrank.powersgd import PowerSGD
    >>> code = PowerSGD(rank=1, error="local")
    >>> [field.name for field in code.layout((6, 4)).fields], [f.name for f in sent_layout(code, (6, 4)).fields]
    (['p', 'q', 'own'], ['p', 'q'])
    """
    layout = layout_of(compressor, tuple(shape))
    left_out = capabilities.rounds_only(compressor)
    return Layout(tuple(field for field in layout.fields if field.name not in left_out)) if left_out else layout


@lru_cache(1 << 14)
def layout_of(compressor: Compressor, shape: tuple[int, ...]) -> Layout:
    """The layout of a payload, cached, because computing it for a small key takes longer than decoding."""
    return compressor.layout(shape)


def sizes(compressor: Compressor, shape: Sequence[int]) -> range:
    """The allowed numbers of bytes: exactly those of the layout, and fewer only if the size varies."""
    layout = sent_layout(compressor, shape)
    return range(layout.nbytes if compressor.fixed_size else layout.offsets[-1], layout.nbytes + 1)


def sent(compressor: Compressor, shape: Sequence[int], payload: Tensor) -> Tensor:
    """The bytes of a payload that travel: uint8, a view if possible."""
    layout, travels = layout_of(compressor, tuple(shape)), sent_layout(compressor, shape)
    if travels is layout:
        return payload if compressor.fixed_size else payload[: sent_nbytes(compressor, layout, payload)]
    out = torch.zeros(travels.nbytes, dtype=torch.uint8, device=payload.device)
    found = {field.name: view for field, view in zip(layout.fields, layout.views(payload), strict=True)}
    for field, target in zip(travels.fields, travels.views(out), strict=True):
        target.copy_(found[field.name])
    return out


def views(compressor: Compressor, shape: Sequence[int], data: Tensor) -> Payload:
    """The fields of received payloads; fields that do not travel are empty, and no decoder reads them.

    Args:
        compressor: compressor that made them.
        shape: shape of the decoded tensor.
        data: uint8, shape ``(nbytes,)`` or ``(senders, nbytes)``, as long as ``sent_layout`` says.
    """
    travels = sent_layout(compressor, shape)
    layout = layout_of(compressor, tuple(shape))
    if travels is layout:
        return layout.views(data)
    found = {field.name: view for field, view in zip(travels.fields, travels.views(data), strict=True)}
    nothing = data[..., :0]
    return tuple(found.get(field.name, nothing) for field in layout.fields)


def received(compressor: Compressor, shape: Sequence[int], data: Tensor) -> Tensor:
    """Check the bytes of one payload that came from outside, and return them in the length that ``views`` expects.

    Args:
        compressor: compressor that made it.
        shape: shape of the decoded tensor.
        data: uint8, of a number that ``sizes`` allows.

    Raises:
        WireError: a payload that cannot be decoded safely.
    """
    missing = sent_layout(compressor, shape).nbytes - data.numel()
    whole = data if missing <= 0 else torch.cat([data, data.new_zeros(missing)])
    compressor.check_payload(views(compressor, shape, whole), shape)
    return whole


def require_alone(compressor: Compressor | None) -> None:
    """Refuse a method of several rounds that saves nothing when a worker runs its rounds alone.

    Raises:
        ConfigError: the method's payload is not smaller than the gradient.
    """
    rounds = compressor is not None and capabilities.in_rounds(compressor)
    if compressor is not None and rounds and sizes(compressor, TRIED).start >= 4 * TRIED[0] * TRIED[1]:
        raise ConfigError(
            f"{compressor.name!r} needs rounds between the workers, which a server does not make: alone a worker would "
            "send as much as the gradient; use it with compress_ddp or in a 'device' store, or another method here"
        )
