"""Base of the compressed forms of Adam: moments in flat tensors, seen through the optimizer's state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.engine.checkpoint import OnResize
from gradwire.errors import ConfigError, is_number, require
from gradwire.optim._flat import FlatParameters, spans_of
from gradwire.optim.exchanged import Closure, Exchanged

__all__ = ["AdamLike"]

FOLLOWED = ("betas", "eps", "lr", "weight_decay")
"""The settings of a group by which its parameters are moved."""


class AdamLike(Exchanged):
    """Base with flat float32 tensors named by ``kept``; ``state[param][name]`` are views of them.

    Args:
        params, compressor, options, group: arguments of ``Exchanged``.
        defaults: ``lr``, ``betas``, ``eps`` and ``weight_decay``.
        own: parameters of its own, in ``ranges``.
    """

    kept: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    dense_first: ClassVar[str] = ""
    """Reason why ``start_after`` is left out; empty: it may be given."""

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        own: Mapping[str, Any],
        compressor: Any,
        options: Mapping[str, Any],
        group: dist.ProcessGroup | None,
    ) -> None:

        def check() -> None:
            check_adam(type(self).__name__, **defaults)
            self.check_parameters(own)
            alone = not self.dense_first or "start_after" not in options
            require(alone, "start_after", f"left out, because {self.dense_first}", options.get("start_after"))

        facts = {**own, "defaults": defaults}
        super().__init__(params, defaults, compressor, options, group, facts, check, float32=True)
        self.scratch = FlatParameters(self.params)
        self._spans = spans_of(self.param_groups, self.params)
        self.flats = {name: FlatParameters(self.params) for name in self.kept}
        self.progress: dict[str, Any] = {"step": 0}
        self._show()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of any optimizer, and the tensors that the exchange keeps on this rank: each rank saves its
        own.
        """
        return {**super().state_dict(), "exchange": self.exchange.state_dict(), "progress": dict(self.progress)}

    def load_state_dict(self, state_dict: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        """Continue bit for bit from a ``state_dict`` of this rank.

        Args:
            on_resize: treatment of another number of ranks, as for ``Exchange.load_state_dict``; "reshard" needs an
                "exchange" that ``gradwire.merge_states`` made of all ranks'. Save in step: the rest is then the same on
                all.

        Raises:
            ConfigError: the state is of another optimizer, or of another number of ranks.
        """
        state = state_dict.get("state", {})
        kept = len(state) >= len(self.params) * bool(self.kept) and all(
            set(self.kept) <= set(each) for each in state.values()
        )
        if set(state_dict.get("progress", {})) != set(self.progress) or not kept:
            raise ConfigError(f"state_dict must be one of {type(self).__name__}, got {sorted(state_dict)}")
        super().load_state_dict(dict(state_dict))
        for name, flat in self.flats.items():
            flat.gather(self.state[param][name] for param in self.params)
        # torch has put copies into ``state``, and the optimizer works on the flat tensors.
        self._show()
        self.progress = dict(state_dict["progress"])
        self.load_exchange(state_dict, on_resize, apart="own" in state_dict)

    def begin(self, closure: Closure | None) -> Any:
        """Evaluate the closure, and copy the gradients, unscaled, into ``scratch``."""
        self.check_model()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # After the closure, because one that raises has begun no step.
        self.exchange.begin_step()
        # Each rank moves its own parameters by these, so others on one rank would lead it away without an error.
        self.exchange.protocol.compare(**self.followed())
        self.scratch.gather(param.grad for param in self.params)
        scale = self.loss_scale()
        if scale is not None:
            # A GradScaler leaves this to an optimizer that declares ``_step_supports_amp_scaling``.
            self.scratch.data.div_(scale)
        return loss

    def followed(self) -> dict[str, Any]:
        """The settings of all groups, which ranks compare in each exchange: each moves its own parameters by them."""
        return {name: [_plain(group[name]) for group in self.param_groups] for name in FOLLOWED}

    def without_gradient(self) -> list[int]:
        """The numbers of the parameters that have no gradient on this rank."""
        return [i for i, param in enumerate(self.params) if param.grad is None]

    def unused(self, idle: Sequence[int]) -> list[int]:
        """The numbers of the parameters that have no gradient on any rank; all ranks must call it.

        It takes an all-reduce of one byte for each parameter: a rank cannot know alone whether another used them.
        """
        used = torch.ones(len(self.params), dtype=torch.uint8, device="cpu")
        used[list(idle)] = 0
        used = used.to(self.exchange.device)
        self.exchange.any_rank(used)
        return [i for i in idle if not used[i]]

    @contextmanager
    def resting(self, numbers: Sequence[int], *, alone: bool = False) -> Iterator[None]:
        """Leave these parameters, their moments, and the tensors that the exchange keeps for them unchanged.

        Args:
            numbers: numbers of the parameters.
            alone: nothing is exchanged meanwhile, and other ranks may have other numbers.
        """
        tensors = [
            tensor for i in numbers for tensor in (self.params[i], *(flat.views[i] for flat in self.flats.values()))
        ]
        # A plan is made by all ranks together, and one that steps alone changes nothing that the exchange keeps.
        if numbers and not alone:
            # Tensors are made with the plan, and only those that exist can be copied.
            self.exchange.plan(self.named)
            tensors += [tensor for i in numbers for tensor in self.exchange.residuals.tensors_of(self.named[i][0])]
        before = [tensor.detach().clone() for tensor in tensors]
        yield
        for tensor, copy in zip(tensors, before, strict=True):
            tensor.copy_(copy)

    def spans(self) -> Iterator[tuple[dict[str, Any], slice, range]]:
        """Yield each group, its elements in the flat tensors, and the numbers of its parameters."""
        for group, (span, numbers) in zip(self.param_groups, self._spans, strict=True):
            yield group, span, numbers

    def next_momentum(self) -> Tensor:
        """Replace the gradient in ``scratch`` by the momentum updated with it, and return it: b1 m + (1 - b1) grad."""
        for group, span, _ in self.spans():
            beta1, m = group["betas"][0], self.flats["exp_avg"].data[span]
            self.scratch.data[span].mul_(1 - beta1).add_(m, alpha=beta1)
        return self.scratch.data

    def learn_variance(self, grad: Tensor) -> None:
        """Update v by the squared gradient: v = beta2 v + (1 - beta2) grad^2."""
        v = self.flats["exp_avg_sq"].data
        for group, span, _ in self.spans():
            beta2 = group["betas"][1]
            v[span].mul_(beta2).addcmul_(grad[span], grad[span], value=1 - beta2)

    def write_denominator(self, updates: int) -> None:
        """Set ``scratch`` to sqrt(v / (1 - beta2^updates)) + eps, and to infinity where v is 0 and has no scale."""
        v = self.flats["exp_avg_sq"].data
        out = torch.sqrt(v, out=self.scratch.data)
        for group, span, _ in self.spans():
            out[span].div_((1 - group["betas"][1] ** updates) ** 0.5).add_(group["eps"])
        out.masked_fill_(v == 0, math.inf)

    def _show(self) -> None:
        for name, flat in self.flats.items():
            for param, view in zip(self.params, flat.views, strict=True):
                self.state[param][name] = view


def check_adam(name: str, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    """Refuse arguments with which Adam cannot work."""
    require(is_number(lr) and 0 <= lr < float("inf"), f"{name}.lr", "a finite number >= 0", lr)
    pair = isinstance(betas, tuple | list) and len(betas) == 2
    inside = pair and all(is_number(beta) and 0 <= beta < 1 for beta in betas)
    require(inside, f"{name}.betas", "two numbers in [0, 1)", betas)
    require(is_number(eps) and 0 < eps < 1, f"{name}.eps", "in (0, 1)", eps)
    decay = is_number(weight_decay) and 0 <= weight_decay < float("inf")
    require(decay, f"{name}.weight_decay", "a finite number >= 0", weight_decay)


def _plain(value: Any) -> Any:
    """A number, or several, as JSON has them: schedulers also set tensors, and numbers of NumPy."""
    return list(map(float, value)) if isinstance(value, tuple | list) else float(value)
