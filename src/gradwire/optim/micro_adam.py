"""Adam whose moments are computed from the last few sparse gradients that all ranks have seen."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.engine.checkpoint import OnResize
from gradwire.errors import ConfigError
from gradwire.memory.base import Memory
from gradwire.modes import ordinary_modes
from gradwire.optim._adam import AdamLike
from gradwire.optim._flat import FlatParameters
from gradwire.optim.exchanged import COUNT, Closure

__all__ = ["MicroAdam"]


class WindowRow(NamedTuple):
    """The elements of a mean gradient that are not 0."""

    places: Tensor
    """Ascending numbers of elements, over all parameters."""
    values: Tensor
    """float32."""
    cuts: list[int]
    """Indices in ``places`` at which the elements of each parameter group begin, and the end of the last one's."""


class MicroAdam(AdamLike):
    """Adam on the largest elements of gradients with error feedback, with a window of them in place of moments.

    s = mean_i C(e_i + g_i);  e_i = e_i + g_i - C(e_i + g_i);  the window keeps the last ``window`` of the s
    m = (1 - b1) / (1 - b1^t) sum_a b1^a s(t - a);  v likewise with b2 and the squares;  a = 0, 1, ... in the window
    p = p - lr m / (sqrt(v) + eps)

    The moments are sums over the window alone. So an element rests that was not sent for ``window`` steps, and v
    forgets sooner than Adam's: with b2 near 1 steps are longer than those of Adam, by up to
    sqrt((1 - b2^t) / (1 - b2^window)). With a ratio of 1 and a window as long as the run it is Adam.

    Every rank has the same s, and so the same parameters, bit for bit. As in the paper e is kept in 4 bits, here with a
    scale for 256 elements and 0 as one of 15 levels, so that what was sent exactly leaves nothing:
    ``residual_dtype="int4"``, if it is not given. "bfloat16" and "float32" keep more of e, in more memory. All ranks
    must call ``step`` equally often. A parameter without a gradient counts as one whose gradient is 0. If any rank's
    gradient is not finite, everything stays as it was on all ranks. A ``GradScaler`` may be used as usual.

    Args:
        params: parameters, (name, parameter) pairs such as ``model.named_parameters()``, or groups; float32. Rank
            0's values are sent to the others. Patterns in the options are over these names.
        lr: step size, >= 0.
        betas: weights of the two sums, in [0, 1).
        eps: epsilon of the denominator, in (0, 1).
        weight_decay: decoupled, >= 0.
        window: m, sparse gradients that are kept, >= 1; 10 in the paper. Each takes 8 bytes for every element that any
            rank sent, and all elements of parameters that travel uncompressed. More: nearer to Adam, and slower.
        compressor: compressor of the gradients plus residual, by name or as an object; it needs a residual. "topk"
            sends 1 % of the elements. One that is not sparse fills the window with all elements.
        process_group: the ranks; None is the default group.
        options: further arguments, as for ``compress_ddp``.

    Raises:
        ConfigError: a parameter is outside its range.
        GroupError: ranks were given different parameters.

    Example:
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> model = torch.nn.Linear(64, 64)
        >>> optimizer = MicroAdam(model.named_parameters(), lr=1e-3)
        >>> for _ in range(2):
        ...     model(torch.ones(2, 64)).sum().backward()
        ...     optimizer.step()
        >>> optimizer.metrics()["steps"]
        2
        >>> dist.destroy_process_group()

    Source:
        I.-V. Modoranu, M. Safaryan, G. Malinovsky, E. Kurtic, T. Robert, P. Richtarik, D. Alistarh, "MicroAdam:
        Accurate Adaptive Optimization with Low Space Overhead and Provable Convergence", NeurIPS 2024.
    """

    kept = ()
    ranges: ClassVar = {"window": COUNT}

    @ordinary_modes()
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        window: int = 10,
        compressor: Any = "topk",
        process_group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(options.get("memory"), Memory):  # Which says itself how it is kept.
            options.setdefault("residual_dtype", "int4")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, {"window": window}, compressor, options, process_group)
        self.window = window
        self.rows: list[WindowRow] = []
        self._squares = FlatParameters(self.params)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Exchange and update. The closure computes this rank's gradients; its value is returned."""
        loss = self.begin(closure)
        if self.exchanged(self.scratch.data):
            self.progress["step"] += 1
            places = self.scratch.data.nonzero().view(-1)
            self.rows = [*self.rows, self._row(places, self.scratch.data[places])][-self.window :]
            self._move()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state of any optimizer, the window, and the tensors of the exchange; each rank saves its own."""
        return {**super().state_dict(), "window": [{"places": row.places, "values": row.values} for row in self.rows]}

    def load_state_dict(self, state_dict: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        if "window" not in state_dict:
            raise ConfigError(f"state_dict must be one of MicroAdam, got {sorted(state_dict)}")
        super().load_state_dict(state_dict, on_resize)
        device = self.exchange.device
        rows = [{key: tensor.to(device, copy=True) for key, tensor in row.items()} for row in state_dict["window"]]
        self.rows = [self._row(**row) for row in rows][-self.window :]

    def _row(self, places: Tensor, values: Tensor) -> WindowRow:
        numel = self.scratch.data.numel()
        ends = torch.tensor([0, *(span.stop for _, span, _ in self.spans())], device=places.device)
        cuts = torch.searchsorted(places.long(), ends).tolist()
        # The window is most of what this optimizer keeps, so its numbers are as narrow as they can be.
        return WindowRow(places.to(torch.int32 if numel < 2**31 else torch.int64), values, cuts)

    def _move(self) -> None:
        means, squares = self.scratch, self._squares
        self._add_up(means.data, 0, 1)
        self._add_up(squares.data, 1, 2)
        squares.data.sqrt_()
        for group, span, numbers in self.spans():
            squares.data[span].add_(group["eps"])
            for i in numbers:
                self.params[i].mul_(1 - group["lr"] * group["weight_decay"])
                self.params[i].addcdiv_(means.views[i], squares.views[i], value=-group["lr"])

    def _add_up(self, out: Tensor, which: int, power: int) -> None:
        """Write the bias-corrected sum, over the window, of the values to this power, with less
        weight for older ones.
        """
        t = self.progress["step"]
        out.zero_()
        for age, row in enumerate(reversed(self.rows)):
            for (group, _, _), (lo, hi) in zip(self.spans(), pairwise(row.cuts), strict=True):
                beta = group["betas"][which]
                weight = (1 - beta) / (1 - beta**t) * beta**age
                out.index_add_(0, row.places[lo:hi], row.values[lo:hi] ** power, alpha=weight)
