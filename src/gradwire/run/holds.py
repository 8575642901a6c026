"""The models that a script wraps: each is held from its first forward pass on, and none before its ranks all are.

Invariants:
    * Watching does not change a bit. Under DDP a hook sums every bucket as DDP does, on DDP's own group; under FSDP2
      the reduce-scatter is FSDP's own.
    * ``auto`` measures, tries its methods on copies, and proposes. It never switches.
    * A hook that the script registers itself is called in place of ours, before the first step or after it.
"""

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Union, cast

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.errors import ConfigError, GradwireError
from gradwire.notices import log
from gradwire.run.session import PLAIN, RunSession, StepCurve
from gradwire.transport.channel import divided

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradwire.frontends.ddp import GradwireState
    from gradwire.frontends.fsdp import FSDPState
    from gradwire.run.sentinel import Sentinel

__all__ = [
    "Hold",
    "Plain",
    "advise",
    "decline_join",
    "expect",
    "give_up",
    "hold_pending",
    "is_ours",
    "loss_of",
    "plain",
]

Kind = Literal["ddp", "fsdp"]
State = Union["GradwireState", "FSDPState"]

AFTER = 8
"""Steps with a method after which something can be said about them."""

NAMES = {"ddp": "DistributedDataParallel", "fsdp": "fully_shard"}

LOOKS = 32
"""Backward passes in which it is looked whether a model took part; a compiled one does so in its first."""

_asked: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_pending: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Models whose first forward pass in training is waited for, with the session and the hook that does so."""

_kinds: weakref.WeakKeyDictionary[Any, Kind] = weakref.WeakKeyDictionary()
_by_state: weakref.WeakKeyDictionary[Any, "Hold"] = weakref.WeakKeyDictionary()
_held: weakref.WeakKeyDictionary[Any, "Hold"] = weakref.WeakKeyDictionary()
_ours = False


def is_ours() -> bool:
    """Return whether a hook is being registered by this module, and not by the script."""
    return _ours


@contextmanager
def _registering() -> "Iterator[None]":
    global _ours
    _ours = True
    try:
        yield
    finally:
        _ours = False


class Hold:
    """A model whose exchange is watched, or compressed.

    Args:
        kind: "ddp" or "fsdp".
        state: state of its exchange.
        session: session that says what is left alone.
    """

    def __init__(self, kind: Kind, state: "State", session: RunSession) -> None:
        self.kind, self._session = kind, session
        self.state: State | None = state
        self.last: dict[str, Any] = {}
        """The figures and decisions of the exchange when its model ended."""
        members = state.exchange.channel.members
        self.speaker = 0 if 0 in members or kind == "fsdp" else members[0]
        """The rank that reports: the first of all, or where it has no part in the model the first that has."""
        self.first, self.world = dist.get_rank() == self.speaker, state.exchange.channel.world
        self.elements = sum(state.sizes.values())
        self.gathered_share: float | None = None
        """The share of weights in the bytes of uncompressed steps, where they are gathered."""
        self.steps, self._then = 0, time.perf_counter()
        self.begun_at = 0
        """Steps of models that had ended when this one began."""
        self._sent = 0
        self.seconds, self.bytes_sent = StepCurve(), StepCurve()
        self.before, self.after = Totals(), Totals()
        self.sentinel: Sentinel | None = None
        self.checks: list[dict[str, Any]] = []
        """The rows of the sentinel."""
        self.model: Callable[[], Any] = lambda: None
        """Returns the model of DDP, as long as there is one."""
        self.instead: tuple[Any, Any] | None = None
        """The hook that the script has registered later, and its state."""

    @property
    def controller(self) -> Any:
        """The controller of the exchange; None where it has ended."""
        return None if self.state is None else self.state.exchange.controller

    @property
    def known(self) -> bool:
        """Return whether what is to be said is known."""
        controller = self.controller
        if self.instead is not None or self.world == 1 or controller is None:
            return True
        return bool(controller.knows and (self.after.steps > AFTER or not controller.decisions))

    def advance(self) -> bool:
        """Note a step if one has ended since the last call; return whether one has."""
        if self.state is None:
            return False
        exchange = self.state.exchange
        moved = exchange.step - self.steps
        if moved <= 0:
            return False
        now, sent = time.perf_counter(), exchange.counters.bytes_sent
        seconds, nbytes = (now - self._then) / moved, (sent - self._sent) / moved
        self.steps, self._then, self._sent = exchange.step, now, sent
        # DDP sorts its buckets anew after the first steps, and the first of all begins with the set-up.
        if self.steps > 3:
            self.seconds.add(self.steps, seconds)
            self.bytes_sent.add(self.steps, nbytes)
            (self.after if exchange.methods.assigned else self.before).add(seconds, nbytes)
        return True

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """Exchange a bucket of DDP."""
        from gradwire.frontends.ddp import gradwire_hook

        if self.instead is not None:
            hook, own = self.instead
            found: torch.futures.Future[torch.Tensor] = hook(own, bucket)
            return found
        assert self.state is not None
        state = cast("GradwireState", self.state)
        try:
            if self.sentinel is not None and not isinstance(bucket, tuple):
                return self.sentinel.reduce(bucket, gradwire_hook)
            return gradwire_hook(state, bucket)
        except ConfigError as error:
            # Known before anything of the bucket was sent, and on all ranks, which do the same with their models.
            model = self.model()
            if model is None or not getattr(model, "_divide_by_initial_world_size", True):
                raise  # No hook knows how many ranks have not ended.
            self.leave(str(error))
            self.instead = _as_torch, model.process_group
            return _as_torch(model.process_group, bucket)

    def leave(self, why: str) -> None:
        """Leave the model alone from now on, and say why."""
        self._session.leave(left_text(self.kind, why), first=self.first)
        self.release()

    def facts(self) -> dict[str, Any]:
        """Return the figures and decisions of the exchange, as plain numbers and words."""
        if self.state is None:
            return self.last
        controller = self.controller
        counters = self.state.exchange.counters
        told = {"exchanges": self.state.exchange.step}
        told |= {"bytes_sent": counters.bytes_sent, "dense_bytes": counters.dense_bytes}
        if controller is None:
            return told
        return {**told, "decisions": controller.report(), "proposal": controller.proposal}

    def release(self) -> None:
        """Let go of the exchange, whose model ends; what was known of it stays."""
        self.last, self.state, self.sentinel = self.facts(), None, None


class Totals:
    """The steps of one kind, with the median of their seconds, and their bytes."""

    def __init__(self) -> None:
        self.steps, self.bytes_sent, self._seconds = 0, 0.0, list[float]()

    def add(self, seconds: float, nbytes: float) -> None:
        """Add a step."""
        self.steps += 1
        self.bytes_sent += nbytes
        self._seconds = [*self._seconds[-199:], seconds]

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the number of steps, and the seconds and bytes of one."""
        middle = sorted(self._seconds)[len(self._seconds) // 2] if self._seconds else None
        sent = self.bytes_sent / self.steps if self.steps else None
        return {"steps": self.steps, "step_seconds": middle, "step_bytes_sent": sent}


def left_text(kind: Kind, why: object) -> str:
    """The line that says why a model is left alone."""
    return f"a model of {NAMES[kind]} is left alone: {' '.join(str(why).split())}"


def expect(session: RunSession, model: Any, kind: Kind) -> None:
    """Hold a model at its first forward pass in training, when all ranks make one."""
    if model not in _kinds and session.mode != PLAIN:
        _kinds[model] = kind
        _pending[model] = session, model.register_forward_pre_hook(begin, prepend=True)


def begin(module: Any, _: Any) -> None:
    """Hold a module before its forward pass in training; a copy of one, which is none that was made here, is not."""
    if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
        return
    if module in _pending:
        hold(_pending[module][0], root_of(module))


def run_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Exchange a bucket of a DDP model that is held; a function of the module, because models are pickled."""
    return _by_state[state].reduce(bucket)


def hold_pending(session: RunSession, tensors: Any) -> None:
    """Hold the models whose forward pass was compiled, so that nobody was asked in it.

    Args:
        tensors: tensors from which a backward pass begins. A model of DDP that it does not reach had no forward pass on
            this rank, and so perhaps on no other, which would be waited for.
    """
    waiting = [model for model in _pending if model.training and _kinds[model] == "fsdp"]
    asked = [model for model in _pending if model.training and _kinds[model] == "ddp" and _asked.get(model, 0) < LOOKS]
    if asked:
        found = _reached(tensors)
        for model in asked:
            _asked[model] = _asked.get(model, 0) + 1
            waiting += [model] if any(id(param) in found for param in model.parameters()) else []
    for model in waiting:
        if model in _pending:
            hold(session, root_of(model))


def _reached(tensors: Any) -> set[int]:
    """The leaves of the graph of some tensors, by their ids."""
    nodes = [each.grad_fn for each in (tensors if isinstance(tensors, list | tuple) else [tensors]) if each is not None]
    seen, found = set[Any](), set[int]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        nodes += [each for each, _ in node.next_functions]
    return found


def _as_torch(
    group: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket as DDP does without a hook."""
    work: Any = dist.all_reduce(divided(bucket.buffer(), dist.get_world_size(group)), group=group, async_op=True)
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


def root_of(module: Any) -> Any:
    """The outermost sharded module around a module: parts of it may be called first."""
    around = (each for each in list(_pending) if any(inner is module for inner in each.modules()))
    return max(around, key=lambda each: sum(1 for _ in each.modules()), default=module)


def hold(session: RunSession, model: Any) -> None:
    """Hold a model now; one that gradwire cannot take is left alone, and that is said."""
    kind = _kinds[model]
    for inner in model.modules():
        forget(inner)
    first = dist.get_rank() == 0
    set_up_log(session)
    try:
        made = hold_ddp(session, model) if kind == "ddp" else hold_fsdp(session, model)
    except GradwireError as error:
        session.leave(left_text(kind, error), first=first)
        return
    _held[model] = made
    weakref.finalize(model, made.release)
    session.hold(made)


def forget(module: Any) -> None:
    """Wait no longer for a module's first forward pass."""
    if module in _pending:
        _pending.pop(module)[1].remove()


def set_up_log(session: RunSession) -> None:
    """Let lines of gradwire go to stderr alone, whatever the script's log is; watching has none but errors."""
    if log.propagate:
        import logging
        import sys

        log.propagate = False
        log.addHandler(logging.StreamHandler(sys.stderr))
        log.setLevel(logging.INFO if session.apply else logging.ERROR)


def hold_ddp(session: RunSession, model: Any) -> Hold:
    """Register a hook on a DDP model."""
    from gradwire.frontends.ddp import GradwireState

    state = GradwireState(model, "auto")
    made = Hold("ddp", state, session)
    made.model = weakref.ref(model)
    _by_state[state] = made
    steer(session, made, model.process_group)
    with _registering():
        model.register_comm_hook(state, run_hook)
    return made


def hold_fsdp(session: RunSession, model: Any) -> Hold:
    """Take over the reduce-scatter of a sharded model."""
    from gradwire.frontends.fsdp import compress_fsdp, managed

    state = compress_fsdp(model, "auto")
    made = Hold("fsdp", state, session)
    made.gathered_share = gathered_share(managed(model), 1 if state.exchange.channel.is_nccl else 2)
    steer(session, made, None)
    if made.sentinel is not None:
        made.sentinel.watch_scatters(model)
    return made


def gathered_share(groups: Sequence[tuple[Any, Any]], reduced: int) -> float:
    """The share of weights in the bytes of a sharded model: each is gathered once, or twice where it is given up after
    the forward pass.

    Args:
        groups: modules of FSDP, with their groups of parameters.
        reduced: times that a gradient travels: over Gloo FSDP's own reduce-scatter is an all-reduce inside.
    """
    gathers = reductions = 0
    for _, group in groups:
        times = 2 if group.post_forward_mesh_info is not None else 1
        for each in group.fsdp_params:
            own, policy = each.sharded_param, group.mp_policy
            gathered = policy.param_dtype or own.dtype
            gathers += times * own.numel() * gathered.itemsize
            reductions += reduced * own.numel() * (policy.reduce_dtype or gathered).itemsize
    return float(gathers / max(1, gathers + reductions))


def steer(session: RunSession, made: Hold, group: Any) -> None:
    """Let the controller propose alone, or check now and then what it has decided."""
    from gradwire.run.sentinel import Sentinel

    if made.controller is None:
        return
    if session.apply:
        made.sentinel = Sentinel(made.state, group, session.sentinel, made.checks)
    else:
        made.controller.propose()


def give_up(session: RunSession, model: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Leave a model alone, because the script registers a hook of its own.

    Returns:
        True where ours is registered already, so that torch would refuse another: theirs is called in its place.
    """
    if model not in _kinds:
        return False  # DDP itself registers one, while the model is made.
    named = kwargs.get("hook", kwargs.get("comm_hook_type", args[-1] if args else None))
    name = getattr(named, "__qualname__", getattr(named, "name", str(named)))
    said = f"the script registers a hook of its own, {name}, so its model of {NAMES['ddp']} is left alone"
    session.leave(said, first=dist.get_rank() == 0)
    made = _held.get(model)
    forget(model)
    if made is None:
        return False
    if callable(named):
        made.instead = named, kwargs.get("state", args[0] if args else None)
    else:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        halves = "FP16" in str(named)
        made.instead = default_hooks.fp16_compress_hook if halves else default_hooks.allreduce_hook, model.process_group
    made.release()
    return True


def decline_join(session: RunSession, model: Any) -> None:
    """Leave a model alone that is told to divide by the ranks that have not ended yet: torch tells no hook how many."""
    if model in _pending:
        why = "its join() has divide_by_initial_world_size=False"
        session.leave(left_text("ddp", why), first=dist.get_rank() == 0)
        forget(model)


def advise(session: RunSession, name: str, line: str) -> None:
    """Say once which line the script needs, for what is only seen."""
    text = f"{name} is watched for its steps only: add `{line}` to the script to compress its gradients"
    if text not in session.notes:
        session.leave(text, first=not dist.is_initialized() or dist.get_rank() == 0)


def loss_of(tensors: Any) -> Tensor | None:
    """The loss with which a backward pass began; None where it is no scalar. Nobody waits for a device here."""
    found = tensors[0] if isinstance(tensors, list | tuple) and len(tensors) == 1 else tensors
    right = isinstance(found, Tensor) and found.numel() == 1 and not torch.compiler.is_compiling()
    return found.detach().clone() if right else None


def plain(session: RunSession) -> "Plain":
    """Return the record of a script that all-reduces its gradients by itself."""
    if session.plain is None:
        session.plain = Plain(session)
    return session.plain


class Plain:
    """The gradients that a script all-reduces by itself, step by step. They are only watched."""

    def __init__(self, session: RunSession) -> None:
        self.session, self.first = session, dist.get_rank() == 0
        self.steps, self._summed, self._spent, self._sent = 0, set[int](), 0.0, 0
        self._then = time.perf_counter()
        self.seconds, self.exposed, self.bytes_summed = StepCurve(), StepCurve(), 0
        self.blocking = True
        """False where a call returns before the sum is there, so that its time says nothing."""

    def all_reduce(self, theirs: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the script's all-reduce, and note what it sums and how long it is waited for."""
        begun = time.perf_counter()
        found = theirs(tensor, *args, **kwargs)
        if isinstance(tensor, Tensor):
            self.blocking &= found is None and not tensor.is_cuda
            self._spent += time.perf_counter() - begun
            self._sent += tensor.nbytes
            self._summed.add(tensor.data_ptr())
        return found

    def stepped(self, optimizer: Any) -> None:
        """Hear that an optimizer has stepped; it counts if its gradients, or as many bytes, were summed before."""
        grads = [param.grad for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
        own = {each.data_ptr() for each in grads} & self._summed
        size = sum(each.nbytes for each in grads)
        if grads and (own or self._sent >= 0.5 * size):
            now = time.perf_counter()
            self.steps += 1
            if self.steps > 1:
                self.seconds.add(self.steps, now - self._then)
                self.exposed.add(self.steps, self._spent)
            self._then, self.bytes_summed = now, self._sent
            if self.steps == 1:
                self.session.event("plain")
                line = "gradwire.compress_optimizer(optimizer, model)"
                text = (
                    "the script all-reduces its gradients by itself, so they are only watched: to compress them, put "
                    f"`{line}` after the optimizer is made, in place of its own all_reduce (docs/ddp.md)"
                )
                self.session.note(text, first=self.first)
        self._summed, self._spent, self._sent = set(), 0.0, 0
