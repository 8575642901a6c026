"""Adam whose momentum travels in one bit, once its variance has settled."""

from __future__ import annotations

from operator import gt
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist

from gradwire.errors import is_int
from gradwire.modes import ordinary_modes
from gradwire.notices import log
from gradwire.optim._adam import AdamLike
from gradwire.optim.exchanged import FLAG, Closure

__all__ = ["OneBitAdam"]

SETTLED = 0.96
"""The ratio of the norms of v, a lag apart, at which it has settled, as in the paper."""


class OneBitAdam(AdamLike):
    """Exact Adam for ``freeze_step`` steps; then the variance is frozen and the momentum travels compressed.

    until freeze_step:  g = mean g_i;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    after it:           m = exchange(b1 m + (1 - b1) g_i), with error feedback on the worker's and the server's side
    always:             p = p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^min(t, freeze_step))) + eps)

    A gradient's error cannot be fed back through Adam, whose division by sqrt(v) is not linear; with v frozen the
    step is linear in the momentum, and it can. The warm-up equals ``torch.optim.AdamW`` bit for bit, or ``Adam`` where
    weight decay is not decoupled. Elements whose gradient was always zero in the warm-up have v = 0 and stay where
    they are: a sign code would send them noise, divided by eps. A parameter without a gradient on any rank stays as it
    is, with its moments and residual; steps are counted for all parameters together. All ranks must call ``step``
    equally often.

    If any rank's gradient is not finite, parameters, moments, residuals and the step count stay as they were on all
    ranks. A ``GradScaler`` may be used as usual.

    Args:
        params: parameters, (name, parameter) pairs such as ``model.named_parameters()``, or groups; float32. Rank
            0's values are sent to the others. Patterns in the options are over these names.
        lr: step size, >= 0.
        betas: weights of momentum and variance, in [0, 1).
        eps: epsilon of the denominator, in (0, 1).
        weight_decay: >= 0.
        decoupled: true: weight decay shrinks the parameters, as in ``AdamW``; false: it is added to the gradient, as in
            ``Adam``: then it goes through both moments, and in compressed steps through the exchange.
        freeze_step: exact steps, >= 1. 15 to 25 % of all steps are usual: fewer save more bytes, but a variance that
            has not settled yet stays wrong for good. "auto": until v has settled, as the paper decides it: its 1-norm
            and that of 1 / (1 - b2) steps before, both without the bias towards 0, have a ratio above 0.96, the
            smaller over the larger one, and the learning rate has not risen in these steps. All ranks decide alike;
            ``metrics()["frozen_at"]`` and a line in the log of rank 0 tell when.
        compressor: compressor of the momentum; a contraction, by name or as an object. The scale of ``efsignsgd`` is
            the mean magnitude; that of DeepSpeed's code, |x|_2 / sqrt(n), is no contraction on heavy tails, so it is
            not offered.
        process_group: the ranks; None is the default group.
        options: further arguments, as for ``compress_ddp``; ``strategy`` is "two_phase" unless told otherwise.

    Raises:
        ConfigError: a parameter is outside its range.
        GroupError: ranks were given different parameters.

    Example:
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> model = torch.nn.Linear(64, 64)
        >>> optimizer = OneBitAdam(model.named_parameters(), lr=1e-3, freeze_step=1, compressor="qsgd")
        >>> for _ in range(2):
        ...     model(torch.ones(2, 64)).sum().backward()
        ...     optimizer.step()
        >>> optimizer.metrics()["steps"]
        2
        >>> dist.destroy_process_group()

    Source:
        H. Tang, S. Gan, A. A. Awan, S. Rajbhandari, C. Li, X. Lian, J. Liu, C. Zhang, Y. He, "1-bit Adam:
        Communication Efficient Large-Scale Training with Adam's Convergence Speed", ICML 2021.
    """

    ranges: ClassVar = {
        "decoupled": FLAG,
        "freeze_step": (lambda value: value == "auto" or is_int(value, 1), "an integer >= 1 or 'auto'"),
    }

    dense_first = "freeze_step says how many steps are dense"

    @ordinary_modes()
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        freeze_step: int | Literal["auto"] = "auto",
        decoupled: bool = True,
        compressor: Any = "efsignsgd",
        process_group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        own, settings = {"freeze_step": freeze_step, "decoupled": decoupled}, {"strategy": "two_phase", **options}
        super().__init__(params, defaults, own, compressor, settings, process_group)
        self.freeze_step, self.decoupled = freeze_step, decoupled
        if freeze_step == "auto":
            self.progress |= {"frozen_at": None, "norms": [], "rates": [], "rose": 0}

    @property
    def frozen_at(self) -> int | None:
        """The last exact step, or None while ``freeze_step="auto"`` has not decided."""
        return self.progress["frozen_at"] if self.freeze_step == "auto" else self.freeze_step

    def metrics(self) -> dict[str, Any]:
        """Return the figures of every optimizer, and the last exact step."""
        return {**super().metrics(), "frozen_at": self.frozen_at}

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Exchange and update. The closure computes this rank's gradients; its value is returned."""
        loss = self.begin(closure)
        exact = self.frozen_at is None or self.progress["step"] < self.frozen_at
        with self.resting(self.unused(self.without_gradient())):
            counts = self._exact() if exact else self._compressed()
            if counts:
                self.progress["step"] += 1
                self._move()
        if counts and self.frozen_at is None:
            self._decide()
        return loss

    def _decide(self) -> None:
        """Freeze v if any rank finds that it has settled: all have the same v, but may sum it in different orders."""
        t = self.progress["step"]
        lag = max(round(1 / (1 - group["betas"][1])) for group in self.param_groups)
        rates = [float(group["lr"]) for group in self.param_groups]
        if any(map(gt, rates, self.progress["rates"])):
            self.progress["rose"] = t
        norms = [*self.progress["norms"], self._norm()][-lag - 1 :]
        self.progress |= {"rates": rates, "norms": norms}
        ratio = min(norms[0], norms[-1]) / max(norms[0], norms[-1]) if max(norms) > 0 else 0.0
        settled = t > lag and t > self.progress["rose"] + lag and ratio > SETTLED
        flag = torch.tensor([settled], dtype=torch.uint8, device="cpu").to(self.exchange.device)
        self.exchange.any_rank(flag)
        if bool(flag):
            self.progress["frozen_at"] = t
            if self.exchange.channel.rank == 0:
                log.info(
                    "OneBitAdam freezes its variance after %d exact steps: the ratio of its norm and that of %d "
                    "steps before is %.4f",
                    t,
                    lag,
                    ratio,
                )

    def _norm(self) -> float:
        """The 1-norm of v without its bias towards 0."""
        t, v = self.progress["step"], self.flats["exp_avg_sq"].data
        parts = [float(v[span].sum()) / (1 - group["betas"][1] ** t) for group, span, _ in self.spans()]
        return float(sum(parts))

    def _exact(self) -> bool:
        """Make an exact step; return whether the averaged gradient was finite, so that both moments were updated."""
        grad, m = self.scratch.data, self.flats["exp_avg"].data
        # The answer is the same on all ranks, so all of them leave the step out or none does.
        if bool(self.exchange.average(grad)):
            return False
        self._add_decay()
        for group, span, _ in self.spans():
            m[span].lerp_(grad[span], 1 - group["betas"][0])
        self.learn_variance(grad)
        return True

    def _compressed(self) -> bool:
        """Make a compressed step; return whether every rank's momentum was finite, so that all have the mean."""
        self._add_decay()
        local = self.next_momentum()
        if not self.exchanged(local):
            return False
        # Only now: until the mean was known to be finite, m had to stay what it was.
        self.flats["exp_avg"].data.copy_(local)
        return True

    def _add_decay(self) -> None:
        """Add weight decay to the gradient; all ranks hold the same parameters, so it may be added before a mean."""
        for group, _, numbers in self.spans() if not self.decoupled else ():
            for i in numbers:
                self.scratch.views[i].add_(self.params[i], alpha=group["weight_decay"])

    def _move(self) -> None:
        t = self.progress["step"]
        self.write_denominator(t if self.frozen_at is None else min(t, self.frozen_at))
        moments, denominators = self.flats["exp_avg"].views, self.scratch.views
        for group, _, numbers in self.spans():
            for i in numbers:
                if self.decoupled:
                    self.params[i].mul_(1 - group["lr"] * group["weight_decay"])
                step = group["lr"] / (1 - group["betas"][0] ** t)
                self.params[i].addcdiv_(moments[i], denominators[i], value=-step)
