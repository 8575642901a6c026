"""The stages of a step for one bucket of gradients, from top to bottom.

    flush      what an earlier method of a parameter has left is added to its gradient
    encode     a memory compensates the gradient, and a compressor writes its payload into a message
    move       a strategy moves the messages over the channel
    decode     every rank decodes the same payloads in the same order
    roll back  or, where some rank had a value that is not finite, all ranks undo their encoding

The plan says where the result arrives: the mean on every rank (``engine/plan.py``; DDP, plain loops, exchanged steps,
replicas of FSDP), or each part at its owner (``engine/owner_plan.py``; FSDP's reduce-scatter). The three middle lines
are one call of its ``move``, because a strategy may have several rounds of them.

Invariants:
    * Whatever is done here follows from names, shapes and configuration, which the ranks have compared, so that all
      ranks start the same collectives in the same order.
    * The function that ``prepare`` returns may run on another thread. What the thread that computes must see in order
      is done before it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from gradwire.vocabulary import Key

if TYPE_CHECKING:
    # Both kinds of plans and the exchange call this module.
    from gradwire.engine.exchange import Exchange
    from gradwire.engine.owner_plan import OwnerPlan
    from gradwire.engine.plan import Plan

__all__ = ["prepare"]


def prepare(
    flat: Tensor,
    plan: Plan | OwnerPlan,
    context: Exchange,
    move: Callable[[Tensor, Key], Collection[Tensor]],
    arrival: tuple[Tensor, int, float],
    pending: Mapping[str, Tensor] | None = None,
) -> Callable[[], None]:
    """Prepare the exchange of a bucket, and return the function that makes it.

    Args:
        flat: contiguous float32, the gradients; overwritten.
        plan: plan of the bucket.
        context: the exchange that this is a step of.
        move: encodes, moves and decodes, or undoes; returns flags of values that are not finite.
        arrival: tensor in which the result arrives, the place in ``flat`` of its first element, and the number by
            which the mean is multiplied.
        pending: flags by parameter: true where its leftover was not sent, because no rank used it.
    """
    if context.rollback.skips_steps:
        # The optimizer may skip the step because of another message, after this one has changed what is kept.
        context.rollback.remember(context.residuals.changing(plan.names))
    flushed = context.leftovers.flush_into(flat, plan.names, plan.add) if context.leftovers.waiting else []
    # After the leftovers were added: they are sent, so they are no noise of the code.
    moment, compare = context.second_moment, None
    if moment is not None and moment.due(context.step) and (spans := plan.measured):
        compare = moment.begin(flat, spans, context.step, context.channel, plan.owned)
    # Taken here, because ``run`` may be called on another thread.
    key = context.key

    def run() -> None:
        flags = move(flat, key)
        # Not read here: to read a flag would make this thread wait for the device.
        context.rollback.note(flags)
        for name in flushed:
            for flag in flags:
                context.leftovers.sent(name, flag | pending[name] if pending and name in pending else flag)
        if compare is not None:
            compare(*arrival)

    return run
