"""Threshold that lets a wanted share of the elements fire, from the values themselves."""

from typing import Annotated

import torch
from torch import Tensor

from gradwire.kernels.arguments import Flat, Floats, Where
from gradwire.kernels.base import declared
from gradwire.kernels.dither import SAMPLE, dither, sampled_places

__all__ = ["auto_threshold"]

KEPT = 0.75
"""Weight of the earlier wishes in a new one: about four steps are remembered."""

FACTOR = 4.0
"""A wish is at most this many times above or below what was agreed on."""

_BELOW = 1 - 2.0**-22
"""Factor of the level, so that an element that decided on it also reaches it, however |x| / d and its product with d
are rounded."""

_LARGEST = torch.finfo(torch.float32).max

Number = Annotated[Tensor, Flat(torch.float32, "1", written=True)]


@declared(threads=False)
def auto_threshold(
    x: Floats,
    threshold: Number,
    level: Number,
    advice: Annotated[Tensor, Flat(torch.float32, "2", written=True)],
    agreed: Annotated[Tensor, Flat(torch.float32, "2")],
    turn: Annotated[Tensor, Flat(torch.int64, "1", written=True)],
    target: Annotated[float, Where("0 < target <= 0.5", "in (0, 0.5]")],
    residual: Annotated[Tensor | None, Flat(torch.float32, "n", shaped=True)] = None,
) -> None:
    """Choose the sent threshold t, and the level from which elements fire, from a sample of x (+ residual).

    q is the value that the share ``target`` of the |x_i| / d_i of the sample reaches, less 2^-22 of it (d: the dither
    of ``dithered_encode``; if fewer than twice that share are not 0, half of those). With A = agreed[0] / agreed[1]:

        t = A, or q before the first agreement;  level = max(q, t - t / 2), infinite while t is 0
        advice = 3/4 advice + 1/4 (q limited to [A / 4, 4 A], 1), where q is not 0 (else A in its place)

    What is not finite counts as 0. Nothing waits for the device.

    Args:
        x: float32, n elements; not changed.
        threshold: float32, 1 element: t.
        level: float32, 1 element.
        advice: float32, 2 elements: the running sums of the wishes and of their weights.
        agreed: float32, 2 elements: the mean of the advice of all ranks; NaN or 0 before the first agreement.
        turn: int64, 1 element, counted up: which elements are looked at next.
        target: the share, in (0, 0.5].
        residual: float32, n elements, or None.

    >>> threshold, level, advice, turn = torch.empty(1), torch.empty(1), torch.zeros(2), torch.zeros(1).long()
    >>> auto_threshold(torch.tensor([8.0, 1.0, 2.0, 3.0]), threshold, level, advice, torch.zeros(2), turn, 0.25)
    >>> [round(value.item(), 4) for value in (threshold, level, *advice, turn)]
    [8.0, 8.0, 2.0, 0.25, 1]
    """
    own = _reached(x, residual, turn, _share_of(x.numel(), target))
    turn += 1
    known = torch.where(agreed[1] > 0, (agreed[0] / agreed[1]).clamp(max=_LARGEST), 0.0)
    limited = own.clamp(known * (1 / FACTOR), (known * FACTOR).clamp(max=_LARGEST))
    wish = torch.where(known > 0, torch.where(own > 0, limited, known), own)
    kept = advice * KEPT + torch.stack([wish, torch.ones_like(wish)]) * (1 - KEPT)
    advice.copy_(torch.where(wish > 0, kept, advice))
    threshold.copy_(torch.where(known > 0, known, own))
    level.copy_(torch.where(threshold > 0, torch.maximum(own, threshold - threshold * 0.5), torch.inf))


def _share_of(n: int, target: float) -> int:
    """The number of elements of the sample of ``n`` that are to fire: at least one."""
    return max(1, round(target * min(n, SAMPLE)))


def _reached(x: Tensor, residual: Tensor | None, turn: Tensor, share: int) -> Tensor:
    """The value that ``share`` of the sampled |x| / d reach, or half of those that are not 0; 0-dimensional."""
    if x.numel() == 0:
        return x.new_zeros(())
    places = sampled_places(x.numel(), turn)
    values = x[places] if residual is None else residual[places] + x[places]
    relative = values.abs() / dither(places)
    relative = torch.where(relative.isfinite(), relative, 0.0).sort(descending=True).values
    last = (relative.count_nonzero() // 2).clamp(1, share) - 1
    return relative.gather(0, last.view(1))[0] * _BELOW
