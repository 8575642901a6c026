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

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from gradwire.engine.leftovers import Leftovers
from gradwire.engine.residual_store import ResidualStore
from gradwire.engine.rollback import Rollback
from gradwire.engine.second_moment import SecondMoment
from gradwire.transport.channel import Channel
from gradwire.vocabulary import Key

__all__ = ["prepare"]


class BucketPlan(Protocol):
    """The plan of one bucket: ``Plan``, or ``OwnerPlan``."""

    @property
    def names(self) -> Sequence[str]:
        """The names of its parameters."""
        ...

    @property
    def owned(self) -> slice | None:
        """The part of ``measured`` whose mean arrives on this rank; None: all of it does."""
        ...

    @property
    def measured(self) -> list[tuple[int, int]]:
        """The ranges of the bucket whose noise may be measured."""
        ...

    def add(self, flat: Tensor, name: str, stored: Tensor) -> None:
        """Add a stored residual of a parameter to its gradient in ``flat``."""
        ...


class StepContext(Protocol):
    """The part of an exchange that a step needs."""

    channel: Channel
    residuals: ResidualStore
    leftovers: Leftovers
    rollback: Rollback
    second_moment: SecondMoment | None

    @property
    def step(self) -> int:
        """The number of the current step."""
        ...

    @property
    def key(self) -> Key:
        """The key of the random streams of this step and rank."""
        ...


def prepare(
    flat: Tensor,
    plan: BucketPlan,
    context: StepContext,
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
                context.leftovers.sent([name], flag | pending[name] if pending and name in pending else flag)
        if compare is not None:
            compare(*arrival)

    return run
