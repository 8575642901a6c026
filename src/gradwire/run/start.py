"""The beginning in each process: modules of torch are watched for, and a few functions of theirs are wrapped.

Invariants:
    * Nothing is imported here but what comes with Python.
    * A wrapper is put around a function when its module has been executed, before any other code has imported the
      function from there. What the wrapper does needs torch, and is imported when it is called.
"""

from __future__ import annotations

import functools
import importlib.abc
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gradwire.run.session import APPLY, PLAIN, STOP, VARIABLE, WATCH, RunSession, say

__all__ = ["start"]


class AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder that finds what others find, and calls a function when the module has been executed.

    Args:
        wanted: functions by the names of modules.
    """

    def __init__(self, wanted: dict[str, Callable[[Any], None]]) -> None:
        self.wanted, self._loaders = wanted, dict[str, Any]()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.wanted:
            return None
        others = (each for each in sys.meta_path if each is not self)
        found = next(filter(None, (each.find_spec(fullname, path, target) for each in others)), None)
        if found is not None and found.loader is not None:
            self._loaders[fullname], found.loader = found.loader, self
        return found

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loaders[spec.name].create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        spec, loader = module.__spec__, self._loaders.pop(module.__name__)
        assert spec is not None
        # Others ask a module for its loader, to read its source.
        spec.loader = module.__loader__ = loader
        loader.exec_module(module)
        self.wanted.pop(module.__name__)(module)


def start(mode: str | None = None, *, speaks: bool = False) -> RunSession | None:
    """Begin in this process, once.

    Args:
        mode: "watch" or "apply"; None: as the variable GRADWIRE_RUN says.
        speaks: true where this process itself says that it saw nothing.

    Returns:
        None where the variable is wrong, which is said.
    """
    global _session, _refused
    if _session is not None:
        _session.speaks = _session.speaks or speaks
        _session.mode = mode or _session.mode
        return _session
    given = mode or os.environ.get(VARIABLE, "")
    if given not in (WATCH, APPLY) and not (given == PLAIN and os.environ.get(STOP)):
        if given != _refused:
            say(f"{VARIABLE} must be 'watch' or 'apply', got {given!r}: nothing is watched")
        _refused = given
        return None
    _session = made = RunSession(given, speaks=speaks)
    wanted: dict[str, Callable[[Any], None]] = {name: functools.partial(wrap, made) for name, wrap in WRAPPED.items()}
    sys.meta_path.insert(0, AfterImport(wanted))
    for name in [each for each in wanted if each in sys.modules]:
        wanted.pop(name)(sys.modules[name])
    return made


_session: RunSession | None = None
_refused: str | None = None
"""A value that was refused already: Python may execute a ``.pth`` twice, where its folder has two names."""


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function by one that calls ``wrapper`` with it and the arguments."""
    theirs = getattr(owner, name)

    @functools.wraps(theirs)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(theirs, *args, **kwargs)

    setattr(owner, name, wrapped)


def wrap_backward(session: RunSession, module: Any) -> None:
    """See the end of every backward pass, and the loss with which it began."""
    inside = False

    def backward(theirs: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside or not (session.stop or session.holds or session.events & {"ddp", "fsdp"}):
            return theirs(tensors, *args, **kwargs)
        from gradwire.run import holds

        inside = True
        try:
            holds.hold_pending(session, tensors)
            found = theirs(tensors, *args, **kwargs)
            session.after_backward(holds.loss_of(tensors))
        finally:
            inside = False
        return found

    around(module, "backward", backward)


def wrap_ddp(session: RunSession, module: Any) -> None:
    """See DDP models when they are made, and the hooks that the script gives them."""
    model = module.DistributedDataParallel

    def made(theirs: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
        theirs(self, *args, **kwargs)
        from gradwire.run import holds

        session.event("ddp")
        holds.expect(session, self, "ddp")

    def registered(theirs: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        from gradwire.run import holds

        if not holds.is_ours() and holds.give_up(session, self, args, kwargs):
            return None
        return theirs(self, *args, **kwargs)

    def joined(theirs: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        from gradwire.run import holds

        if not (kwargs.get("divide_by_initial_world_size", True) if not args else args[0]):
            holds.decline_join(session, self)
        return theirs(self, *args, **kwargs)

    around(model, "__init__", made)
    around(model, "join", joined)
    for name in ("register_comm_hook", "_register_builtin_comm_hook"):
        around(model, name, registered)


def wrap_fully_shard(session: RunSession, module: Any) -> None:
    """See modules that are sharded by FSDP2."""

    def sharded(theirs: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        found = theirs(module, *args, **kwargs)
        from gradwire.run import holds

        session.event("fsdp")
        for each in [module] if not isinstance(module, list | tuple) else module:
            holds.expect(session, each, "fsdp")
        return found

    around(module, "fully_shard", sharded)


def wrap_fsdp1(session: RunSession, module: Any) -> None:
    """See models of FSDP1, which are left as they are."""

    def made(theirs: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
        theirs(self, *args, **kwargs)
        from gradwire.run import holds

        holds.advise(session, "FullyShardedDataParallel", "gradwire.compress_fsdp1(model)")

    around(module.FullyShardedDataParallel, "__init__", made)


def wrap_collectives(session: RunSession, module: Any) -> None:
    """See groups, and gradients that the script itself all-reduces."""

    def formed(theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = theirs(*args, **kwargs)
        session.event("group")
        return found

    def summed(theirs: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if session.holds or session.events & {"ddp", "fsdp", "left"}:
            return theirs(tensor, *args, **kwargs)
        from gradwire.run import holds

        return holds.plain(session).all_reduce(theirs, tensor, *args, **kwargs)

    around(module, "init_process_group", formed)
    around(module, "all_reduce", summed)


def wrap_optimizers(session: RunSession, module: Any) -> None:
    """See the steps of optimizers, while gradients may be all-reduced by the script itself."""

    def stepped(optimizer: Any, *_: Any) -> None:
        if session.plain is not None and not session.holds:
            session.plain.stepped(optimizer)

    module.register_optimizer_step_post_hook(stepped)


WRAPPED: dict[str, Callable[[RunSession, Any], None]] = {
    "torch.autograd": wrap_backward,
    "torch.nn.parallel.distributed": wrap_ddp,
    "torch.distributed.fsdp._fully_shard._fully_shard": wrap_fully_shard,
    "torch.distributed.fsdp.fully_sharded_data_parallel": wrap_fsdp1,
    "torch.distributed.distributed_c10d": wrap_collectives,
    "torch.optim.optimizer": wrap_optimizers,
}
"""The function that wraps functions of each module, once that was imported."""
