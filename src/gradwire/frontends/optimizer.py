"""Integration into a plain training loop: gradients are exchanged just before the optimizer's step."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire._short_traceback import short_traceback
from gradwire.engine.checkpoint import OnResize
from gradwire.errors import ConfigError, Verbatim, is_float32, require
from gradwire.frontends._buckets import Bucket, BucketState, buckets_of
from gradwire.frontends._model_copies import note_copies_of_optimizer
from gradwire.frontends.optimizer_watch import parameters_of
from gradwire.frontends.ownership import Caller, owners_of
from gradwire.frontends.setup import frozen_in, kind_of, prepare, share_start, uncompiled, warn_of_statistics
from gradwire.frontends.state_units import Units
from gradwire.frontends.uncompressed import sparse_in
from gradwire.frontends.variance_correction import VarianceCorrection
from gradwire.modes import ordinary_modes

__all__ = ["OptimizerState", "compress_optimizer"]


CALLER = Caller("gradwire.compress_optimizer")

_GUARDS: weakref.WeakKeyDictionary[Optimizer, Any] = weakref.WeakKeyDictionary()
"""The hooks of optimizers whose state was closed, which refuse their steps until they have another one."""


class OptimizerState(BucketState):
    """The exchange in front of an optimizer's step. Made by ``compress_optimizer``."""

    @ordinary_modes()
    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        compressor: Any,
        bucket_mb: float,
        options: dict[str, Any],
        group: dist.ProcessGroup | None,
        scaler: Any,
        lr_correction: bool,
        variance_correction: bool,
    ) -> None:
        super().__init__()
        ours: set[int] = set()

        def check() -> None:
            check_arguments(optimizer, model, bucket_mb, scaler)
            require(isinstance(lr_correction, bool), "lr_correction", "True or False", lr_correction)
            require(isinstance(variance_correction, bool), "variance_correction", "True or False", variance_correction)
            VarianceCorrection.check(optimizer if variance_correction else None)
            ours.update(id(param) for param in parameters_of(optimizer))

        model = uncompiled(model)
        prepared = prepare(
            model,
            compressor,
            options,
            group,
            CALLER,
            ours,
            sparse_in(model) if isinstance(model, nn.Module) else (),
            check,
            carrier=optimizer,
            bucket_mb=bucket_mb,
            variance_correction=variance_correction,
            **Units.facts(scaler, lr_correction),
        )
        self.exchange, params = prepared.exchange, prepared.params
        if variance_correction:
            self.check_correction()  # Before anything hangs on the optimizer or on its parameters.
        self.buckets = buckets_of(prepared, bucket_mb)
        names = {id(param): name for name, param in params.items()}
        units = Units(scaler, optimizer if lr_correction else None, names)
        shapes = {id(param): (name, tuple(param.shape)) for name, param in prepared.compressed.items()}
        self._follow_training(units, shapes, optimizer, corrected=variance_correction)
        self.sizes = {name: param.numel() for name, param in params.items()}
        self.frozen = frozen_in(model)
        if self.exchange.channel.rank == 0 and self.exchange.channel.world > 1:
            warn_of_statistics("compress_optimizer", model.modules())
        self._known = {id(param): param for param in params.values()}
        self._done = False
        self._seen: dict[int, tuple[int, int]] = {}
        self._pass = -1
        self.exchange.protocol.count_dropped(0, anew=True)
        # Weakly, because the state may hold the optimizer, and parameters outlive both.
        note, self._optimizer = partial(fresh, weakref.ref(self)), weakref.ref(optimizer)
        self._hooks: list[Any] = [
            param.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            for param in params.values()
        ]
        # After the comparison of the ranks: tensors are sent in the order in which each rank has them.
        share_start([*model.parameters(), *model.buffers()], group)
        self._hooks.append(optimizer.register_step_pre_hook(self.before_step))
        if (guard := _GUARDS.pop(optimizer, None)) is not None:
            guard.remove()

    def close(self) -> None:
        """End the communication thread; the optimizer must not step again unless another state has taken over."""
        super().close()
        for hook in self._hooks:
            # The optimizer and its parameters may live on, and what they call would keep the state's tensors.
            hook.remove()
        optimizer, self._hooks = self._optimizer(), []
        if optimizer is not None and optimizer not in _GUARDS:
            params: list[weakref.ref[Tensor]] = [weakref.ref(param) for param in self._known.values()]
            _GUARDS[optimizer] = optimizer.register_step_pre_hook(partial(refuse_step, params))

    def exchange_gradients(self) -> None:
        """Replace every gradient by its mean over the ranks; a parameter that no rank used keeps none.

        The optimizer's step does this by itself. With a ``GradScaler`` call it before ``scaler.step(optimizer)``, so
        that all ranks see the same overflow and skip the same step.
        """

        def scatter(bucket: Bucket) -> None:
            bucket.scatter()
            self.note_overflow(bucket)

        self.average(lambda bucket: [param.grad for param in bucket.params], scatter)
        self._done = True
        self._seen.clear()

    def load_state_dict(self, state: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        """Continue as every state does; gradients that were computed before do not count."""
        super().load_state_dict(state, on_resize)
        self._seen.clear()
        self.exchange.protocol.count_dropped(0, anew=True)

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Exchange before the optimizer's step, unless it was done by hand since the last backward.

        Raises:
            ConfigError: a closure, whose gradients nobody would exchange, a parameter that was frozen or unfrozen, or a
                ``GradScaler`` that the state does not know.
            GroupError: a rank did not answer in time, is in another iteration, or raised one of these errors.
        """
        # The ranks do not compare this: a rank whose scaler skips the step would not be there to raise the error, too.
        scaler, known = scaler_at_work(), self.units.scaler
        allowed = "that whose step() is called, as scaler= of compress_optimizer: a rank skips it that overflows alone"
        together = scaler in (None, known) or (known is None and self._done)
        require(together, "scaler", allowed, known)
        try:
            self._check(optimizer, args, kwargs)
        except ConfigError as error:
            self._refuse(error)
        if not self._done:
            # A rank whose scaler skips the step would never come here, and the others wait for it.
            require(
                self.units.scaler is None,
                "exchange_gradients",
                "called before scaler.unscale_ and scaler.step",
                Verbatim("no call"),
            )
            self.exchange_gradients()
        self._done = False

    def _check(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        require(
            closure is None,
            "closure",
            "None: it would compute gradients after the exchange",
            getattr(closure, "__qualname__", closure),
        )
        allowed = "over the parameters that were trainable at set-up"
        new = [p for p in parameters_of(optimizer) if p.requires_grad and id(p) not in self._known]
        require(not new, "optimizer", allowed, Verbatim(f"{len(new)} more"))
        # The residual of a frozen parameter would still train it.
        frozen = [param for param in self._known.values() if not param.requires_grad]
        require(
            not frozen, "optimizer", allowed, Verbatim(f"{len(frozen)} frozen since: make a new state without them")
        )

    def _refuse(self, error: ConfigError) -> None:
        """Raise this rank's error, and on the other ranks too if they wait for it in an exchange."""
        if self._done or self.units.scaler is not None:
            raise error

        def check() -> None:
            raise error

        # As the other ranks do, so that all of them compare the same step.
        self.exchange.begin_step()
        self.exchange.open(check)
        # The other ranks wait for the digest of this one, and raise its error.
        self.exchange.channel.settle()
        raise error

    def computed(self, param: Tensor) -> None:
        """Note that a gradient was computed, so that an earlier exchange does not count for it.

        Accumulation adds to the tensor once. If it is another tensor by now, or was written to in between, what had
        been accumulated since the last exchange was dropped. That is how a rank is known that leaves out an exchange
        and goes on to the next iteration; backward passes cannot be counted, because micro-batches may be uneven. The
        first gradient of a pass answers for all: other parameters may be used in it than before, by each rank others.
        """
        self._done = False
        grad = param.grad
        if torch.compiler.is_compiling() or type(grad) is not Tensor or grad.is_sparse:
            return  # A sparse gradient has no one place in memory; the dense ones answer for it.
        current, before, now = torch._C._current_graph_task_id(), self._pass, (grad.data_ptr(), grad._version)
        self._pass = current
        # A backward pass with create_graph=True makes a new tensor.
        if not torch.is_grad_enabled() and self._dropped(param, now, others=current != before):
            self.exchange.protocol.count_dropped(1)
            self._seen.clear()
        self._seen[id(param)] = now

    def _dropped(self, param: Tensor, now: tuple[int, int], others: bool) -> bool:
        """Return whether an accumulated gradient is gone: this parameter's, or any one."""
        for key, (start, version) in self._seen.items() if others else ():
            other = self._known[key]
            # Those on another device are accumulated by another thread, just now.
            if other is not param and other.device == param.device:
                grad = other.grad
                if grad is None or (grad.data_ptr(), grad._version) != (start, version):
                    return True
        seen = self._seen.get(id(param))
        return seen is not None and now != (seen[0], seen[1] + 1)


def refuse_step(params: Sequence[weakref.ref[Tensor]], *_: object) -> None:
    """Refuse the step of an optimizer whose state was closed, if nobody else exchanges its gradients."""
    require(
        any(owners_of(param) for each in params if (param := each()) is not None),
        "state of the optimizer",
        "open when it steps, or ranks would train apart: call compress_optimizer again, or go on with a new optimizer",
        Verbatim("one that was closed"),
    )


def fresh(state: weakref.ref[OptimizerState], param: Tensor) -> None:
    """Note that a gradient was computed, if the state still exists."""
    if (known := state()) is not None:
        known.computed(param)


def scaler_at_work() -> torch.amp.GradScaler | None:
    """The enabled ``GradScaler`` in whose ``step`` this thread is, if any."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is torch.amp.GradScaler.step.__code__:
            scaler: torch.amp.GradScaler = frame.f_locals["self"]
            return scaler if scaler.is_enabled() else None
        frame = frame.f_back
    return None


def check_arguments(optimizer: Any, model: Any, bucket_mb: object, scaler: Any) -> None:
    """Refuse arguments that only this rank may have got wrong.

    Raises:
        ConfigError: no optimizer or no module, a bucket without room, or an optimizer whose parameters are not the
            model's.
    """
    if not isinstance(optimizer, Optimizer) or not isinstance(model, nn.Module):
        swapped = isinstance(optimizer, nn.Module) and isinstance(model, Optimizer)
        several = isinstance(model, list | tuple)
        remedy = "; they are the other way round" if swapped else "; join models in a ModuleList" if several else ""
        raise ConfigError(
            "compress_optimizer must be given a torch.optim.Optimizer and the torch.nn.Module that it trains, got "
            f"{kind_of(optimizer)} and {kind_of(model)}{remedy}"
        )
    require(is_float32(bucket_mb) and bucket_mb > 0, "bucket_mb", "a number > 0", bucket_mb)  # type: ignore[operator]
    Units.check(scaler)
    ours = {id(param) for param in model.parameters()}
    others = sum(id(param) not in ours for param in parameters_of(optimizer))
    require(others == 0, "optimizer", "over the model's own parameters", Verbatim(f"one that has {others} others"))


@short_traceback
def compress_optimizer(
    optimizer: Optimizer,
    model: nn.Module,
    compressor: Any = "auto",
    *,
    bucket_mb: float = 25.0,
    process_group: dist.ProcessGroup | None = None,
    scaler: Any = None,
    lr_correction: bool = False,
    variance_correction: bool = False,
    **options: Any,
) -> OptimizerState:
    """Average gradients, compressed, whenever ``optimizer.step()`` is called: data parallelism without DDP.

    All ranks must call it, with the same arguments. Rank 0's parameters are sent to the others.

    Args:
        optimizer: any torch optimizer over the model's parameters; it stays what it is, schedulers keep working.
        model: names the parameters.
        compressor: "auto", which measures and decides within ``budget``; or a registered name, a compressor, or a
            recipe of ``from_params``.
        bucket_mb: gradients travel in buckets of about this many MB of float32.
        process_group: the ranks; None is the default group.
        scaler: scaler of the loss, so that residuals follow its scale; then call ``state.exchange_gradients()`` before
            ``scaler.unscale_`` and ``scaler.step``.
        lr_correction: rescale residuals when a schedule changes the optimizer's learning rates.
        variance_correction: multiply the learning rates of an optimizer such as Adam by what the noise of the code
            shortens its steps by, so that rates found without compression can be kept.
        options: further arguments, as for ``compress_ddp``.

    Returns:
        The state; ``state.metrics()`` tells what went over the wire.

    Raises:
        ConfigError: a wrong option, an optimizer whose parameters are not the model's, or parameters whose gradients
            somebody else averages, such as DDP.
        GroupError: ranks were given different options.

    Example:
        >>> import torch, torch.distributed as dist, gradwire
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> model = torch.nn.Linear(64, 64)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> state = gradwire.compress_optimizer(optimizer, model, "twobit", threshold=1e-3)
        >>> model(torch.ones(2, 64)).sum().backward()
        >>> optimizer.step()
        >>> state.metrics()["steps"]
        1
        >>> dist.destroy_process_group()
    """
    state = OptimizerState(
        optimizer, model, compressor, bucket_mb, options, process_group, scaler, lr_correction, variance_correction
    )
    note_copies_of_optimizer(optimizer)
    state.correct(optimizer if variance_correction else None)  # Behind the exchange, whose step it measures.
    return state
