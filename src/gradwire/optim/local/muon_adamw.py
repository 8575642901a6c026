"""Muon for the matrices of the layers, and AdamW for everything else, as one optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from gradwire._short_traceback import ShortTracebacks
from gradwire.errors import ConfigError, Verbatim, is_number, require
from gradwire.optim.local._fragments import layer_of

__all__ = ["MuonAdamW"]


class MuonAdamW(ShortTracebacks, Optimizer):
    """Step matrices of the layers by ``torch.optim.Muon``, and embeddings, head, norms and biases by AdamW.

    Its ``param_groups`` are two, Muon's first, so that a scheduler changes both rates. Muon's step has one size
    whatever a gradient's, so a residual of *gradients* makes no sense under it: what is sent late and at once counts
    for one step (gradwire warns; docs/adaptive.md). Exchange changes of the parameters instead, as ``DiLoCo.muloco``
    does: these are only added, and a residual of them loses nothing.

    Args:
        params: names and parameters, as of ``model.named_parameters()``.
        lr: learning rate of Muon. A matrix of more rows than columns has it times the root of rows / columns.
        adamw_lr: learning rate of AdamW; None: a twentieth of ``lr``.
        momentum: momentum of Muon, in [0, 1); without Nesterov's look ahead, as MuLoCo's authors have it.
        betas: betas of AdamW.
        weight_decay: decoupled decay of both.
        matrix: function that says of a name and a parameter whether it is Muon's; None: every matrix with a number in
            its name, as layers have.

    Raises:
        ConfigError: this torch has no Muon, it is 2.9's and later ones'; parameters without names; none for Muon, or
            one that is no matrix; or torch refuses a value.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
        >>> optimizer = MuonAdamW(model.named_parameters(), lr=0.02)
        >>> [group["param_names"] for group in optimizer.param_groups]
        [['0.weight'], ['0.bias', '1.weight', '1.bias']]

    Source:
        K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; as the inner optimizer of
        workers that meet rarely, B. Thérien, X. Huang, I. Rish, E. Belilovsky, "MuLoCo: Muon is a practical inner
        optimizer for DiLoCo", arXiv:2505.23725, 2025.
    """

    def __init__(
        self,
        params: Iterable[tuple[str, nn.Parameter]],
        lr: float = 0.02,
        adamw_lr: float | None = None,
        *,
        momentum: float = 0.9,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 1e-4,
        matrix: Callable[[str, Tensor], bool] | None = None,
    ) -> None:
        muon = getattr(torch.optim, "Muon", None)
        require(muon is not None, "torch", "2.9 or later, which has Muon", Verbatim(torch.__version__))
        require(is_number(momentum) and 0 <= momentum < 1, "MuonAdamW.momentum", "in [0, 1)", momentum)
        rates = {"lr": lr, "adamw_lr": lr if adamw_lr is None else adamw_lr, "weight_decay": weight_decay}
        for name, value in rates.items():
            require(is_number(value) and 0 <= value < math.inf, f"MuonAdamW.{name}", "a finite number >= 0", value)
        given = list(params)
        pairs = all(isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) for each in given)
        require(pairs, "MuonAdamW.params", "names and parameters, as model.named_parameters()", Verbatim("others"))
        mine = [pair for pair in given if (matrix or _in_a_layer)(*pair)]
        require(bool(mine), "MuonAdamW.params", "some with a matrix for Muon; matrix= says which", Verbatim("none"))
        chosen = {name for name, _ in mine}
        rest = [pair for pair in given if pair[0] not in chosen]
        try:
            parts: list[Optimizer] = [muon(mine, lr, weight_decay, momentum, nesterov=False)]  # type: ignore[misc]
            if rest:
                rate = lr / 20 if adamw_lr is None else adamw_lr
                parts.append(AdamW(rest, rate, betas, weight_decay=weight_decay))
        except ValueError as error:
            raise ConfigError(f"MuonAdamW: {error}") from None
        super().__init__([group for part in parts for group in part.param_groups], {"lr": lr})
        self._parts = parts
        # A scheduler that cycles the momentum looks here for what it may change: Muon's, and AdamW has none.
        self.defaults["momentum"] = momentum

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add one of its own groups; afterwards there is none to add."""
        if hasattr(self, "_parts"):
            raise ConfigError("MuonAdamW must be given all parameters when it is made, got another group of them")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part, group in zip(self._parts, self.param_groups, strict=True):
            # What a checkpoint brings replaces both.
            part.param_groups, part.state = [group], self.state
            part.step()
        return loss


def _in_a_layer(name: str, param: Tensor) -> bool:
    return param.dim() == 2 and layer_of(name) is not None
