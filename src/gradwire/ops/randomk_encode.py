"""The elements that a seed chooses."""

import torch
from torch import Tensor

from gradwire.errors import is_int, require
from gradwire.ops._checks import check_vector, float32
from gradwire.ops._randomk import HEADER, choose, write_seed
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["randomk_encode"]


def _check(
    x: Tensor,
    values: Tensor,
    header: Tensor,
    seed: int,
    run: int,
    scaled: bool,  # noqa: ARG001
    scale: float,  # noqa: ARG001
) -> None:
    require(is_int(run, 1), "randomk_encode.run", "an integer >= 1", run)
    require(is_int(seed, 0, 2**32 - 1), "randomk_encode.seed", "an integer of 32 bits", seed)
    check_vector("randomk_encode.x", x, torch.float32, x)
    check_vector("randomk_encode.values", values, torch.float32, x)
    whole = values.numel() % run == 0 and values.numel() < x.numel() + run
    require(whole, "randomk_encode.values", f"whole runs of {run}, at most one for each of x", values.numel())
    check_vector("randomk_encode.header", header, torch.float32, x, HEADER)


@operation(
    "randomk_encode(Tensor x, Tensor(a!) values, Tensor(b!) header, int seed, int run, bool scaled, float scale) -> ()",
    _check,
)
def randomk_encode(x: Tensor, values: Tensor, header: Tensor, seed: int, run: int, scaled: bool, scale: float) -> None:
    """Write the elements that the seed chooses: in each of k strata a run of neighbours.

        value = (scale * x) * (scaled: units in the stratum, else 1)

    Args:
        x: float32, n elements; not changed.
        values: float32, k * run: run after run, in order of their places; what lies beyond the end of x is 0.
        header: float32, 5 elements: 1, and the bytes of the seed.
        seed: 0 to 2**32 - 1.
        run: elements that are chosen together.
        scaled: whether the mean over all seeds is x.
        scale: factor of x, rounded to float32.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> values, header = torch.empty(2), torch.empty(5)
    >>> randomk_encode(torch.arange(8.0), values, header, seed=258, run=1, scaled=False, scale=1.0)
    >>> values.tolist(), header.tolist()
    ([3.0, 5.0], [1.0, 2.0, 1.0, 0.0, 0.0])

    Source: S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """
    write_seed(seed, header)
    first, sizes = choose(torch.full((1,), seed, device=x.device), x.numel(), values.numel() // run, run)
    where = first.unsqueeze(1) + torch.arange(run, device=x.device)
    inside = where < x.numel()
    found = x[where.clamp_(max=max(x.numel() - 1, 0))] * float32(scale)
    if scaled:
        found *= sizes.unsqueeze(1).float()
    values.view(-1, run).copy_(torch.where(inside, found, 0.0))


@randomk_encode.kernel("CPU")
def _cpu(x: Tensor, values: Tensor, header: Tensor, seed: int, run: int, scaled: bool, scale: float) -> None:
    write_seed(seed, header)
    addresses, k = (x.data_ptr(), values.data_ptr()), values.numel() // run
    kernels.randomk_encode(*addresses, seed, k, run, scaled, scale, x.numel(), torch.get_num_threads())
