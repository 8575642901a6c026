"""The time for which a backward pass stands still until the weights of the next module are gathered.

Law: gathers and reductions share a link, so what waits for the one hides nothing of the other: only computing does. The
pilot takes these times off those in which gradients are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradwire.auto.step_record import Moment, moment

__all__ = ["Stalls"]


class Stalls:
    """The pauses of the thread, or the stream, that computes a sharded model, while weights are gathered.

    Args:
        device: device of the model.
        wanted: returns whether somebody asks for them.
    """

    def __init__(self, device: torch.device, wanted: Callable[[], bool]) -> None:
        self._device, self._wanted = device, wanted
        self._found, self._groups = list[tuple[Moment, Moment]](), list[Any]()

    def watch(self, group: Any) -> None:
        """Note from now on when one of FSDP's groups of parameters is gathered, if somebody may ever ask."""
        if not self._wanted():
            return
        self._groups.append(group)
        group.unshard, group.wait_for_unshard = self._timed(group.unshard), self._timed(group.wait_for_unshard)

    def leave(self) -> None:
        """Let FSDP call its own functions again."""
        for group in self._groups:
            del group.unshard, group.wait_for_unshard
        self._groups.clear()

    def taken(self) -> tuple[tuple[Moment, Moment], ...]:
        """Return the pauses since the last call, each from one time to another."""
        found, self._found = tuple(self._found), []
        return found

    def _timed(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if torch._C._current_graph_task_id() == -1 or not self._wanted():
                return theirs(*args, **named)
            begun = moment(self._device)
            made = theirs(*args, **named)
            self._found.append((begun, moment(self._device)))
            return made

        return call
