"""MXNet's Signum: a step in the direction of the signs of the momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Signum"]


class Signum(torch.optim.Optimizer):
    """Signum, the signs of a momentum; with ``momentum=0`` signSGD.

        m = momentum m + (1 - momentum) (g + weight_decay w);  w = (1 - lr wd_lh) w - lr sign(m)
        momentum = 0:                                          w = (1 - lr weight_decay) w - lr sign(g)

    Args:
        params: as for torch's optimizers.
        lr: the learning rate, >= 0.
        momentum: in [0, 1).
        weight_decay: added to the gradient, >= 0.
        wd_lh: decay of the weights themselves, >= 0; only with a momentum, as in MXNet.

    Raises:
        ValueError: a number outside its range.

    Source: Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: Compressed Optimisation for Non-Convex Problems",
    ICML 2018; ``mx.optimizer.Signum`` of MXNet 1.9.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.01, momentum: float = 0.9, weight_decay: float = 0.0,
        wd_lh: float = 0.0,
    ) -> None:  # fmt: skip
        if min(lr, weight_decay, wd_lh) < 0 or not 0 <= momentum < 1:
            raise ValueError("lr, weight_decay and wd_lh must be >= 0, momentum in [0, 1)")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "wd_lh": wd_lh})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters by their gradients.

        Args:
            closure: computes the loss anew, as torch's optimizers take it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, group)
        return loss

    def _update(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
        if not momentum:
            param.mul_(1 - lr * decay).sub_(grad.sign(), alpha=lr)
            return
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(param)
        buffer = state["momentum_buffer"]
        buffer.mul_(momentum).add_(grad.add(param, alpha=decay), alpha=1 - momentum)
        param.mul_(1 - lr * group["wd_lh"]).sub_(buffer.sign(), alpha=lr)
