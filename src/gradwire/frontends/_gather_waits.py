"""The time for which a sharded model stands still until the weights of the next module are gathered.

Why:
    Gathers and reductions share a link, so time that waits for the one hides nothing of the other; only computing does.
    The autotuner subtracts these times from those in which gradients are computed. On a CPU those of the forward pass
    are noted, too, because the thread that computes waits for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from gradwire.auto.step_record import Moment, moment

__all__ = ["GatherWaits"]


MOST = 4096
"""Pauses that are kept, of the newest gathers: where a model is only evaluated, nobody asks for them."""


class GatherWaits:
    """The pauses of the thread, or the stream, that computes a sharded model, while weights are gathered.

    Args:
        device: device of the model.
        wanted: returns whether somebody asks for them.
        forward: true: those of forward passes are noted, too.
    """

    def __init__(self, device: torch.device, wanted: Callable[[], bool], *, forward: bool = False) -> None:
        self._device, self._wanted, self._graph, self._forward = device, wanted, -1, forward
        self._found, self._wrapped = deque[tuple[Moment, Moment]](maxlen=MOST), list[tuple[Any, str, Any, Any]]()

    def watch(self, group: Any) -> None:
        """Note from now on when one of FSDP's groups of parameters is gathered."""
        for name in ("unshard", "wait_for_unshard"):
            before, ours = vars(group).get(name), self._timed(getattr(group, name))
            setattr(group, name, ours)
            self._wrapped.append((group, name, before, ours))

    def leave(self) -> None:
        """Let FSDP call the functions of before, but where somebody has replaced ours since."""
        for group, name, before, ours in self._wrapped:
            if vars(group).get(name) is not ours:
                continue
            if before is None:
                delattr(group, name)
            else:
                setattr(group, name, before)
        self._wrapped.clear()
        self._wanted = lambda: False

    def taken(self) -> tuple[tuple[Moment, Moment], ...]:
        """Return the pauses since the last call, each from one time to another."""
        found = tuple(self._found)
        self._found.clear()
        return found

    def _timed(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            graph = torch._C._current_graph_task_id()
            if (graph == -1 and not self._forward) or not self._wanted():
                return theirs(*args, **named)
            if graph != self._graph and not self._forward:
                # What an earlier pass has left, because nothing was reduced in it, belongs to no bucket of this one.
                self._graph = graph
                self._found.clear()
            begun = moment(self._device)
            made = theirs(*args, **named)
            self._found.append((begun, moment(self._device)))
            return made

        return call
