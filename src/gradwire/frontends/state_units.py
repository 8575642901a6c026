"""State of every integration: figures, a checkpoint, another compressor, and the unit of its residuals.

Invariants:
    * A residual is in the unit of the gradients in which it arose, which is the loss scale, and is applied with the
      learning rate of the step in which it is sent. If the scaler, or the optimizer, was given, residuals are rescaled
      whenever its scale or rate changes.
    * A divisor that is applied to a gradient after it was sent is followed in any case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.engine.adaptive import TORCH, Remedies
from gradwire.engine.checkpoint import OnResize
from gradwire.engine.exchange import Exchange
from gradwire.engine.methods import Methods
from gradwire.engine.plan import Named
from gradwire.engine.policy import Schedule
from gradwire.engine.settings import build_compressor
from gradwire.engine.strategies.base import Strategy
from gradwire.errors import ConfigError, Verbatim, require
from gradwire.frontends._dropped import DroppedGradients
from gradwire.frontends.optimizer_watch import AdaptiveWatch, check_optimizer, trains
from gradwire.frontends.ownership import release
from gradwire.frontends.setup import is_auto
from gradwire.frontends.summary import Summarised
from gradwire.frontends.variance_correction import VarianceCorrection, check_noise
from gradwire.memory.base import Memory
from gradwire.transport.handshake import agree

__all__ = ["ExchangeState", "Reading", "Scratch", "Units"]

Reading = tuple[float | None, dict[str, float]]
"""The loss scale, if one is followed, and the learning rate of each parameter."""


class Units:
    """The unit of residuals, which follows a loss scale and learning rates.

    Args:
        scaler: scaler of the loss, a ``torch.amp.GradScaler``; None: the loss is not scaled, or its scale is fixed.
        lr_correction: the optimizer whose rates residuals follow; None: they are sent as they are.
        names: names of the parameters, by id.
    """

    def __init__(self, scaler: Any, lr_correction: Optimizer | None, names: Mapping[int, str]) -> None:
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.optimizer, self.names = lr_correction, names
        self.scale: float | None = None
        self.rates: dict[str, float] = {}
        self.divisors: dict[str, float] = {}
        self._ahead: list[Reading] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a unit that follows nothing, because a copy of a model must not follow a scaler or a copied
        optimizer.
        """
        return Units, (None, None, {})

    @staticmethod
    def facts(scaler: Any, lr_correction: object) -> dict[str, Any]:
        """The facts on which ranks must agree: one that follows alone would keep its residual in a unit of its own."""
        enabled = getattr(scaler, "is_enabled", lambda: scaler is not None)
        return {"scaler": bool(enabled()), "lr_correction": lr_correction not in (None, False)}

    @staticmethod
    def check(scaler: Any, lr_correction: Any = None, params: Iterable[Tensor] = ()) -> None:
        """Refuse an object that is not a scaler, or not an optimizer of these parameters."""
        scales = scaler is None or (hasattr(scaler, "get_scale") and hasattr(scaler, "is_enabled"))
        require(scales, "scaler", "a torch.amp.GradScaler or None", scaler)
        optimizer = lr_correction is None or isinstance(lr_correction, Optimizer)
        require(optimizer, "lr_correction", "a torch.optim.Optimizer or None", lr_correction)
        ours = lr_correction is None or trains(lr_correction, params)
        require(ours, "lr_correction", "the optimizer of this model's parameters", Verbatim("one of others"))

    def read_ahead(self, model: nn.Module, device: torch.device) -> None:
        """Read the scale before each forward pass on a GPU, because reading it in the middle of a backward pass would
        wait.
        """
        if self.scaler is not None and device.type == "cuda":
            # The scaler has waited for the device at its last step.
            model.register_forward_pre_hook(self._before_forward)

    def _before_forward(self, *_: object) -> None:
        self._ahead[:] = [self.now()]

    def read(self) -> Reading:
        """Return the values that were read ahead, or else the present scale and rates."""
        return self._ahead.pop() if self._ahead else self.now()

    def now(self) -> Reading:
        """Read the scale and the rates; it waits for a scale on a GPU."""
        rates = dict[str, float]()
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            own = (self.names[id(param)] for param in group["params"] if id(param) in self.names)
            rates |= dict.fromkeys(own, float(group["lr"]))
        return (self.scaler.get_scale() if self.scaler is not None else None), rates

    def follow(self, exchange: Exchange, scale: float | None, rates: Mapping[str, float]) -> None:
        """Multiply the residuals by the new scale over the old one, and by the old rate over the new one."""
        if scale is not None:
            if self.scale is not None and self.scale != scale:
                exchange.rescale(scale / self.scale)
            self.scale = scale
        factors: dict[float, set[str]] = {}
        for name, rate in rates.items():
            # A rate of 0 moves nothing: residuals stay in the unit of the last rate that did.
            if rate > 0:
                factors.setdefault(self.rates.get(name, rate) / rate, set()).add(name)
                self.rates[name] = rate
        for factor, names in factors.items():
            if factor != 1:
                exchange.scale_residuals(factor, names)

    def follow_divisor(self, exchange: Exchange, names: Sequence[str], divisor: float) -> None:
        """Multiply the tensors kept for these parameters by the new divisor over the old one.

        So a residual still counts as it would have when it arose. Call it before the parameters' exchange in a step.

        Args:
            divisor: divisor of the mean of what is sent, which gives the gradient, > 0.
        """
        factors: dict[float, set[str]] = {}
        for name in names:
            factors.setdefault(divisor / self.divisors.get(name, divisor), set()).add(name)
            self.divisors[name] = divisor
        for factor, changed in factors.items():
            if factor != 1:
                exchange.residuals.rescale(factor, changed)

    def rescaled(self, device: torch.device) -> bool:
        """Return whether the scale is another than that of the residuals; on a GPU, where reading it would wait, only
        one that was read ahead counts.
        """
        if self.scaler is None or self.scale is None:
            return False
        if self._ahead:
            return self._ahead[-1][0] != self.scale
        return device.type == "cpu" and self.scaler.get_scale() != self.scale

    def state_dict(self) -> dict[str, Any]:
        """Return the unit of the saved tensors, in numbers."""
        return {"scale": self.scale, "rates": dict(self.rates), "divisors": dict(self.divisors)}

    def check_scale(self, state: Mapping[str, Any], kept: bool) -> None:
        """Refuse residuals whose unit is not known, or could not be followed.

        Args:
            state: result of ``state_dict``.
            kept: true: something is kept that has a unit.

        Raises:
            ConfigError: the residuals followed a scaler, and there is none now, or the other way round.
        """
        scale = state.get("scale")
        lost = kept and scale is not None and self.scaler is None
        require(not lost, "scaler", f"given, as when the state was saved at scale {scale}", None)
        if self.scaler is not None and scale is None and kept:
            raise ConfigError(
                "scale of the state must be known where a scaler is given, got None: it was saved without scaler=; set "
                "state['units']['scale'] to the scale of its gradients, 1.0 if the loss was not scaled"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in the unit of a saved state that was checked."""
        self.scale = state.get("scale") if self.scaler is not None else None
        self.rates = dict(state.get("rates", {}))
        self.divisors = dict(state.get("divisors", {}))


class ExchangeState(Summarised):
    """Base of the states of front ends; they set ``exchange``, ``units``, ``adaptive`` and ``sizes``.

    ``variance`` is set where an optimizer's learning rates follow the noise of the code, ``dropped`` where gradients
    are exchanged in the backward pass and may be dropped after it.
    """

    units: Units
    adaptive: AdaptiveWatch
    variance: VarianceCorrection | None = None
    dropped: DroppedGradients | None = None
    sizes: Mapping[str, int]
    frozen: Mapping[str, int] = {}
    """Elements of parameters that are not trained now: their residuals are kept until they are."""
    in_backward: ClassVar[bool] = True
    """True where gradients are exchanged while a backward pass goes on."""

    def between_steps(self, call: str) -> None:
        """Refuse a call inside a backward pass, as from a hook of a tensor: some of its gradients were exchanged."""
        inside = self.in_backward and torch._C._current_graph_task_id() != -1
        allowed = "called between steps: in a backward pass some gradients were exchanged, and others were not"
        require(not inside, f"{call}()", allowed, Verbatim("a call inside a backward pass"))

    @staticmethod
    def _check_training(
        params: Iterable[Tensor], scaler: Any, lr_correction: Any, optimizer: Any, variance_correction: Any
    ) -> None:
        """Refuse what does not train these parameters, or not in the way that the option wants."""
        params = list(params)
        Units.check(scaler, lr_correction, params)
        check_optimizer(optimizer, params)
        check_optimizer(variance_correction, params, "variance_correction")
        VarianceCorrection.check(variance_correction)

    def _follow_training(
        self,
        units: Units,
        params: Mapping[int, Named],
        optimizer: Optimizer | str | None,
        model: nn.Module | None = None,
        *,
        corrected: bool,
        remedies: Remedies = TORCH,
    ) -> None:
        """Follow the loss scale and the optimizers of the parameters that are compressed.

        Args:
            units: unit of the residuals.
            params: each parameter's id, with its name and shape in the exchange.
            optimizer, corrected, remedies: arguments of ``AdaptiveWatch``.
            model: model before whose forward passes the scale can be read; None: there is none.
        """
        self.units = units
        self.adaptive = AdaptiveWatch(self.exchange, params, optimizer, corrected=corrected, remedies=remedies)
        if model is not None:
            units.read_ahead(model, self.exchange.device)
        # A scaler skips the optimizer's step after the exchange, which must then be undone as a whole.
        self.exchange.rollback.follow_skips(units.scaler is not None)

    def _give_back(self) -> None:
        """Leave learning rates alone, and give the parameters and the group back, which another exchange may have."""
        if self.dropped is not None:
            self.dropped.leave()
        if self.variance is not None:
            self.variance.close()
        release(self.exchange)
        self.exchange.channel.close()

    def correct(self, optimizer: Optimizer | None) -> None:
        """Make the learning rates of an optimizer follow the noise of the code from now on; None stops that.

        Raises:
            ConfigError: a method whose error is not noise.
        """
        if optimizer is not None:
            self.check_correction()
            self.variance = VarianceCorrection(self.exchange, optimizer)

    def check_correction(self) -> None:
        """Refuse, at set-up, a method whose error is not noise."""
        try:
            check_noise(self.exchange.methods)
        except ConfigError:
            # The state is never made, so nobody else would give the group back.
            self._give_back()
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return all that this rank must save to continue bit for bit: plain dicts, numbers, and the tensors in use.

        With ``torch.distributed.checkpoint`` pass the state itself; read it with ``gradwire.read_checkpoint``.

        Raises:
            ConfigError: the call is inside a backward pass.
        """
        self.between_steps("state_dict")
        return {**self.exchange.state_dict(), "units": self.units.state_dict()}

    @property
    def stored_parts(self) -> int:
        """The number of parts, the shards of all ranks, in which a kept tensor of a parameter is stored."""
        return 1

    def load_state_dict(self, state: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        """Continue from a ``state_dict``, and forget everything else. All ranks must call it, between steps.

        Args:
            state: state of this rank, or the states of all ranks (``gradwire.merge_states``,
                ``gradwire.read_checkpoint``).
            on_resize: treatment of a state of another number of ranks. "reshard": the mean of the residuals, the part
                of the mean update that was not sent, is kept, for which the states of all ranks are needed; "reset":
                only the step is taken.

        Raises:
            ConfigError: the state is of another number of ranks and ``on_resize`` is "error", of another model, or
                not complete; or the call is inside a backward pass.
            GroupError: ranks were given states of different steps.
        """
        self.between_steps("load_state_dict")
        # A frozen parameter may have been trained when the state was saved, and keeps its residual.
        fit, sizes = partial(self._fit, on_resize=on_resize), {**self.frozen, **self.sizes}
        self.exchange.load_state_dict(state, on_resize=on_resize, sizes=sizes, parts=self.stored_parts, fit=fit)
        # Only now: the state was accepted on all ranks.
        self.units.load_state_dict(state.get("units", {}))

    def _fit(self, state: Mapping[str, Any], on_resize: OnResize) -> Mapping[str, Any]:
        whole = self.fitted(state, on_resize)
        if on_resize != "reset" or state.get("world") == self.exchange.channel.world:
            waits = any(any(rank.get("worker", {}).values()) for rank in whole.get("ranks", {}).values())
            self.units.check_scale(state.get("units", {}), waits)
        return whole

    def fitted(self, state: Mapping[str, Any], on_resize: OnResize) -> Mapping[str, Any]:
        """Convert a state to the form that this rank's exchange takes."""
        return state

    def change(
        self,
        compressor: Any,
        *,
        memory: Memory | str | None = None,
        strategy: Strategy | str | None = None,
        drop: bool = False,
        force: bool | None = None,
        schedule: Mapping[str, Schedule] | None = None,
        **params: Any,
    ) -> None:
        """Continue with another compressor or other settings from the next step on. All ranks must call it.

        The new method sends what is in the residuals. "auto" decides nothing any more, and a schedule of set-up ends.

        Args:
            compressor: a registered name, with its parameters, or a compressor; "auto" decides only from the start.
            memory: a memory or its name; None chooses.
            strategy: a strategy or its name; None chooses.
            drop: forget what the new memory does not keep, in place of an error.
            force: use error feedback where the method declares it unsafe, or none where it declares it required; None
                is what the state was made with.
            schedule: parameters of the new compressor to functions of the step, as at set-up; None: they stay as given.

        Raises:
            ConfigError: a combination that cannot work, one that would lose residuals, or a call inside a backward
                pass.
            GroupError: ranks were given different arguments.
        """
        self.between_steps("change")
        exchange, made = self.exchange, list[Methods]()
        exchange.end_step()

        def describe() -> str:
            require(isinstance(force, bool | None), "force", "True, False or None", force)
            allowed = "a method: 'auto' decides only in a state that was made with it"
            require(not is_auto(compressor), "compressor", allowed, compressor)
            mapping = schedule is None or isinstance(schedule, Mapping)
            require(mapping, "schedule", "a mapping from parameters to functions of the step, or None", schedule)
            # A value that is given here must not be overwritten by a schedule that was meant for another method.
            policy = dataclasses.replace(exchange.methods.policy, schedule=dict(schedule or {}))
            code = build_compressor(compressor, params)
            after = exchange.methods.changed(code, memory, strategy, force=force, policy=policy)
            # The patterns are those of set-up, which has compared them with the names.
            after.policy.check_schedule(after.compressor, after.world)
            self.check(after)
            refuse_loss(exchange, after, drop)
            made.append(after)
            return after.describe([], seed=exchange.seed, step=exchange.step)

        # Before anything changes: if one rank refuses the method, all of them raise and go on with the old one.
        agree(exchange.channel, "change", describe, exchange.device)
        made[0].meet(exchange.channel, exchange.device)
        if exchange.controller is not None:
            # Before ``change``, which removes the controller: a rank may have noted what it has not told the others
            # yet.
            exchange.controller.recorder.leave()
        exchange.change(made[0])
        self.adaptive.check()

    def check(self, methods: Methods) -> None:
        """Refuse a choice of methods that this integration cannot carry."""
        if self.exchange.second_moment is not None:
            check_noise(methods)


def refuse_loss(exchange: Exchange, after: Methods, drop: bool) -> None:
    """Refuse a change of method that would lose residuals, unless ``drop``.

    Raises:
        ConfigError: the new method keeps none, and something waits.
    """
    if not drop and "residual" not in after.buffers("buffers") and exchange.residuals.any_unsent():
        name = after.memory_for(after.compressor).name
        raise ConfigError(
            f"memory {name!r} of {after.compressor.name!r} would lose what waits in the residuals: "
            "use memory='residual', or say drop=True"
        )


class Scratch:
    """A float32 buffer for one 16-bit tensor at a time, which grows to the largest."""

    def __init__(self) -> None:
        self._room: Tensor | None = None

    def float32(self, tensor: Tensor) -> Tensor:
        """Return the flat tensor itself, or a copy in float32 that is valid until the next call."""
        if tensor.dtype == torch.float32:
            return tensor
        if self._room is None or self._room.numel() < tensor.numel():
            self._room = torch.empty_like(tensor, dtype=torch.float32)
        if tensor.is_cuda:
            # Another stream than the one that made it may use it, also when it is replaced by a larger one.
            self._room.record_stream(torch.cuda.current_stream(tensor.device))
        return self._room[: tensor.numel()].copy_(tensor)
