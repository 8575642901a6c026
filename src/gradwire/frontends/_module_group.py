"""Modules that were given to ``fully_shard`` together, and get their gradients at different times.

Why:
    FSDP reduces what has a gradient when one of the modules ends its backward pass, in one call. A loss that is
    computed in chunks runs the last module's backward pass before that of the others, so a call may be for some of the
    modules alone. Their names must be noted before FSDP takes the gradients, because its buffer does not show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["ModuleGroupBackward"]


class ModuleGroupBackward:
    """The function that FSDP calls when a module ends its backward pass, for one group of modules.

    Args:
        group: FSDP's group of parameters, of more than one module.
    """

    def __init__(self, group: Any) -> None:
        self.group, self.theirs = group, group.post_backward
        parts = [{id(inner) for inner in module.modules()} for module in group.modules]
        self._parts = [
            [each for each in group.fsdp_params if id(each._module_info.module) in inside] for inside in parts
        ]
        self._ready: Sequence[Any] = group.fsdp_params
        group.post_backward = self

    def __call__(self, *unused: Any) -> Any:
        """Note whose gradients are there, and do as FSDP does."""
        self._ready = [each for each in self.group.fsdp_params if has_gradient(each)]
        return self.theirs(*unused)

    def ready(self) -> Sequence[Any]:
        """The parameters that FSDP reduces now.

        A module of which only some parameters have a gradient counts as a whole, so that it is refused.
        """
        if self.group.reduce_scatter_unused_params:
            return self.group.fsdp_params  # type: ignore[no-any-return]
        return [each for part in self._parts if any(one in self._ready for one in part) for each in part]

    def leave(self) -> None:
        """Let FSDP call its own function again."""
        del self.group.post_backward


def has_gradient(param: Any) -> bool:
    """Return whether FSDP has a gradient of this parameter that is not reduced yet."""
    inside = getattr(param, "_unsharded_param", None)
    # From torch 2.15 on what was accumulated is in the parameter's own gradient.
    kept = getattr(param, "unsharded_accumulated_grad", None)
    return kept is not None or (inside is not None and inside.grad is not None)
