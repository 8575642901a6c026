"""Adam that updates its variance at fewer and fewer steps, and later also exchanges at fewer and fewer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gradwire.engine.checkpoint import OnResize
from gradwire.modes import ordinary_modes
from gradwire.optim._adam import AdamLike
from gradwire.optim._flat import any_nonfinite
from gradwire.optim.exchanged import COUNT, Closure
from gradwire.transport.handshake import DECAY_BEFORE, RATES_BEFORE

__all__ = ["ZeroOneAdam"]


class ZeroOneAdam(AdamLike):
    """Adam with compressed momentum from the start, exact steps that become rare, and local steps in between later.

    A step is one of three kinds. In all of them m_i = b1 m_i + (1 - b1) g_i and c = lr / (1 - b1^t).

    exact        g = mean g_i exactly;  v = b2 v + (1 - b2) g^2;  p = p - c m / s,  s = sqrt(v / (1 - b2^updates)) + eps
    local        u_i = u_i + c m_i;  p_i = p_i - c m_i / s
    in step      u = exchange(u_i + c m_i);  m = u / (sum of c since the last one);  p = p_last - u / s;  u = 0

    Until ``var_freeze_step`` every step is exact or in step, and the distance between exact steps doubles after each
    ``var_update_scaler`` of them. Then v is frozen, and every H-th step is in step; H doubles after each
    ``local_step_scaler`` steps, up to ``local_step_clipper``. Parameters are bit-identical on all ranks after every
    step that is not local: evaluate and save there (``optimizer.in_step``). What is exchanged is in units of lr times
    momentum, as in the paper's algorithm 1, so a change of lr does not distort the residuals.

    All ranks must call ``step`` equally often. A gradient that is not finite leaves everything as it was: on its rank
    in a local step, on all ranks otherwise; an exchange that fails so is made up for in the next step. Elements with
    v = 0 stay where they are, as in ``OneBitAdam``; so does a parameter without a gradient: on its rank in a local
    step, and where no rank had one since they were last in step, with its residual, in any other.

    Args:
        params: parameters, as for ``OneBitAdam``; 20 bytes are kept for each element beside the residuals.
        lr: step size, >= 0. While it is 0, only exact steps learn anything.
        betas: weights of momentum and variance, in [0, 1).
        eps: epsilon of the denominator, in (0, 1).
        weight_decay: decoupled, >= 0.
        var_freeze_step: last step at which v may be learned, >= 1; about where the learning rate has warmed up.
        var_update_scaler: exact steps until their distance doubles, >= 1. Larger: a better v for more bytes.
        local_step_scaler: steps until H doubles, >= 1.
        local_step_clipper: the largest H, >= 1; 1 leaves out the local steps.
        compressor: a contraction, by name or as an object.
        process_group: the ranks; None is the default group.
        options: further arguments, as for ``compress_ddp``; ``strategy`` is "two_phase" unless told otherwise.

    Raises:
        ConfigError: a parameter is outside its range.
        GroupError: ranks were given different parameters.

    Example:
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> model = torch.nn.Linear(64, 64)
        >>> optimizer = ZeroOneAdam(model.named_parameters(), lr=1e-3, var_freeze_step=2, compressor="qsgd")
        >>> for _ in range(3):
        ...     model(torch.ones(2, 64)).sum().backward()
        ...     optimizer.step()
        >>> optimizer.in_step
        True
        >>> dist.destroy_process_group()

    Source:
        Y. Lu, C. Li, M. Zhang, C. De Sa, Y. He, "Maximizing Communication Efficiency for Large-scale Training via 0/1
        Adam", ICLR 2023.
    """

    kept = ("exp_avg", "exp_avg_sq", "moved", "agreed")
    ranges = dict.fromkeys(("var_freeze_step", "var_update_scaler", "local_step_scaler", "local_step_clipper"), COUNT)

    dense_first = "the variance is exact from the first step on"

    @ordinary_modes()
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        var_freeze_step: int = 100_000,
        var_update_scaler: int = 16,
        local_step_scaler: int = 32_678,
        local_step_clipper: int = 16,
        compressor: Any = "efsignsgd",
        process_group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        schedule = {
            "var_freeze_step": var_freeze_step,
            "var_update_scaler": var_update_scaler,
            "local_step_scaler": local_step_scaler,
            "local_step_clipper": local_step_clipper,
        }
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        settings = {"strategy": "two_phase", **options}
        super().__init__(params, defaults, schedule, compressor, settings, process_group)
        self.schedule = schedule
        groups = len(self.param_groups)
        self.progress |= {"updates": 0, "next": 1, "since": 0, "paths": [0.0] * groups, "shrunk": [1.0] * groups}
        self.flats["agreed"].gather(self.params)

    @property
    def in_step(self) -> bool:
        """Return whether all ranks hold the same parameters now."""
        return bool(self.progress["since"] == 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of any optimizer, the tensors of the exchange, and between two exchanges this rank's
        parameters: each rank saves its own.
        """
        return {**super().state_dict(), **self.own_parameters(apart=not self.in_step)}

    def load_state_dict(self, state_dict: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        super().load_state_dict(state_dict, on_resize)
        self.put_back(state_dict, apart=not self.in_step)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Update, and exchange if the schedule says so. The closure computes this rank's gradients."""
        loss = self.begin(closure)
        self.progress["step"] += 1
        t = self.progress["step"]
        if self.in_step:
            # Parameters may have been loaded or changed by hand.
            self.flats["agreed"].gather(self.params)
        learning = t <= self.schedule["var_freeze_step"] or self.progress["updates"] == 0
        idle = self.without_gradient()
        if learning and t == self.progress["next"]:
            with self.resting(self.unused(self._where_all_met(idle))):
                self._exact()
        elif self.progress["since"] + 1 >= self._distance(t) and self._paths() != [0.0] * len(self.param_groups):
            with self.resting(self.unused(self._where_all_met(idle))):
                self._together()
        else:
            with self.resting(idle, alone=True):
                self._alone()
        return loss

    def followed(self) -> dict[str, Any]:
        """The settings of all groups in this step, and what those of the steps since the last exchange came to."""
        return {**super().followed(), RATES_BEFORE: self.progress["paths"], DECAY_BEFORE: self.progress["shrunk"]}

    def _where_all_met(self, numbers: Sequence[int]) -> list[int]:
        """The numbers of these parameters that did not move since all ranks were in step."""
        agreed = self.flats["agreed"].views
        return [i for i in numbers if self.in_step or torch.equal(self.params[i], agreed[i])]

    def _distance(self, t: int) -> int:
        """The interval H in steps from one exchange to the next."""
        frozen = t - self.schedule["var_freeze_step"]
        doublings = max(0, frozen - 1) // self.schedule["local_step_scaler"]
        return int(min(self.schedule["local_step_clipper"], 2 ** min(doublings, 30)))

    def _paths(self) -> list[float]:
        """The sum of c since the last exchange for each group, this step included."""
        t = self.progress["step"]
        return [
            path + group["lr"] / (1 - group["betas"][0] ** t)
            for path, group in zip(self.progress["paths"], self.param_groups, strict=True)
        ]

    def _shrunk(self) -> list[float]:
        """The factor by which weight decay shrank parameters since the last exchange, for each group, this step
        included.
        """
        return [
            shrunk * (1 - group["lr"] * group["weight_decay"])
            for shrunk, group in zip(self.progress["shrunk"], self.param_groups, strict=True)
        ]

    def _exact(self) -> None:
        # An exact step that fails is tried again in the next one.
        self.progress["next"] += 1
        # The answer is the same on all ranks, so all of them leave the step out or none does.
        if bool(self.exchange.average(self.scratch.data)):
            return
        done = self.progress["updates"] = self.progress["updates"] + 1
        self.progress["next"] += 2 ** (done // self.schedule["var_update_scaler"]) - 1
        self.learn_variance(self.scratch.data)
        m = self.next_momentum()
        self.flats["exp_avg"].data.copy_(m)
        for (_, span, _), path in zip(self.spans(), self._paths(), strict=True):
            m[span].mul_(path)
        self._arrive(m)

    def _alone(self) -> None:
        bad = any_nonfinite([self.scratch.data])
        if not bad:
            self._move_alone()
        # The other ranks do not learn of it, so lengths and counts go on.
        self.progress |= {"paths": self._paths(), "shrunk": self._shrunk(), "since": self.progress["since"] + 1}

    def _move_alone(self) -> None:
        m, u = self.flats["exp_avg"].data, self.flats["moved"].data
        learned, before, after = self.next_momentum(), self.progress["paths"], self._paths()
        for (_, span, _), done, path in zip(self.spans(), before, after, strict=True):
            if path > done:
                m[span].copy_(learned[span])
                u[span].add_(m[span], alpha=path - done)
        self.write_denominator(self.progress["updates"])
        for (group, _, numbers), done, path in zip(self.spans(), before, after, strict=True):
            for i in numbers:
                self.params[i].mul_(1 - group["lr"] * group["weight_decay"])
                self.params[i].addcdiv_(self.flats["exp_avg"].views[i], self.scratch.views[i], value=done - path)

    def _together(self) -> None:
        u = self.next_momentum()
        before, after = self.progress["paths"], self._paths()
        for (_, span, _), done, path in zip(self.spans(), before, after, strict=True):
            u[span].mul_(path - done)
        u.add_(self.flats["moved"].data)
        # Paths and counts stay as they were, so the next step exchanges what came before this one.
        if not self.exchanged(u):
            return
        m = self.flats["exp_avg"].data
        for (_, span, _), path in zip(self.spans(), after, strict=True):
            if path > 0:
                torch.div(u[span], path, out=m[span])
        self._arrive(u)

    def _arrive(self, u: torch.Tensor) -> None:
        """Move the parameters of all ranks from the last agreed values by u / s, and agree on the result."""
        self.flats["moved"].data.copy_(u)
        self.write_denominator(self.progress["updates"])
        agreed, moved = self.flats["agreed"].views, self.flats["moved"].views
        for (_, _, numbers), shrunk in zip(self.spans(), self._shrunk(), strict=True):
            for i in numbers:
                agreed[i].mul_(shrunk).addcdiv_(moved[i], self.scratch.views[i], value=-1)
        # From the agreed values, because this rank's parameters have moved alone since.
        self.flats["agreed"].scatter(self.params)
        self.flats["moved"].data.zero_()
        groups = len(self.param_groups)
        self.progress |= {"since": 0, "paths": [0.0] * groups, "shrunk": [1.0] * groups}
