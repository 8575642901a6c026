"""Gradients that no method takes, because they are sparse or of another dtype: they travel as torch sends them.

Each bucket of them is averaged by one all-reduce in its own dtype and layout. The list of parameters is that of the
code that reduces, such as DDP's reducer, without those that DDP ignores.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import ConfigError
from gradwire.frontends.ownership import living
from gradwire.notices import log

__all__ = [
    "DTYPES",
    "announce_uncompressed",
    "kinds_of",
    "reduced_by_ddp",
    "refuse_sparse",
    "sparse_in",
    "tables_in",
]


DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes of the gradients that methods take."""

MUCH = 0.2
"""The share of a step's bytes from which on what no method takes is worth a warning."""


def tables_in(module: nn.Module) -> list[nn.Module]:
    """The embeddings whose gradients are sparse; a wrapper may have taken their parameters."""
    return [each for each in module.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.sparse]


def sparse_in(module: nn.Module) -> set[int]:
    """The ids of parameters that get sparse gradients, as DDP finds them."""
    return {id(param) for each in tables_in(module) for param in each.parameters(recurse=False)}


def refuse_sparse(names: Iterable[str]) -> None:
    """Refuse sparse gradients of these parameters, where torch cannot reduce any.

    Raises:
        ConfigError: there is one.
    """
    for name in names:
        raise ConfigError(
            f"sparse of {name} must be False under FSDP, which reduces no sparse gradients, got sparse=True; make the "
            "embedding without it, or tell FSDP to ignore its parameters"
        )


def kinds_of(params: Mapping[str, Tensor], sparse: Container[int] = ()) -> dict[str, str]:
    """The parameters whose gradients no method takes, by name, each with its kind: "sparse", or its dtype.

    Args:
        sparse: ids of the parameters that get sparse gradients.

    >>> kinds_of({"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.float64)})
    {'b': 'float64'}
    """
    kinds = {name: "sparse" if id(param) in sparse else str(param.dtype)[6:] for name, param in params.items()}
    return {name: kind for name, kind in kinds.items() if kind == "sparse" or params[name].dtype not in DTYPES}


class Reduced(NamedTuple):
    """The parameters that DDP reduces, by their ids.

    Args:
        params: parameters whose gradients it reduces.
        sparse: ids of those that get sparse gradients.
        ignored: names of the parameters that it was told to ignore.
    """

    params: dict[int, Tensor]
    sparse: set[int]
    ignored: Container[str]


def reduced_by_ddp(model: object) -> Reduced:
    """The parameters that DDP's reducer was made with.

    Args:
        model: a DDP model, or a module that one is around, or will be.
    """
    # The plain form is given the module inside, and DDP's own list of parameters counts.
    around = (each for each in living() if each.module is model)
    wrapped: Any = model if isinstance(model, DistributedDataParallel) else next(around, None)
    if wrapped is not None:
        params, sparse = wrapped._build_params_for_reducer()
        rows = {id(param) for param, expected in zip(params, sparse, strict=True) if expected}
        return Reduced({id(param): param for param in params}, rows, wrapped.parameters_to_ignore)
    if not isinstance(model, nn.Module):
        return Reduced({}, set(), ())
    ignored = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    left: dict[int, Tensor] = {id(param): param for name, param in model.named_parameters() if name not in ignored}
    return Reduced(left, sparse_in(model), ignored)


def announce_uncompressed(params: Mapping[str, Tensor], kinds: Mapping[str, str]) -> None:
    """Say once which parameters travel as torch sends them, and with how many of a step's bytes."""
    if not kinds:
        return
    apart = sum(params[name].nbytes for name in kinds)
    share = apart / max(1, sum(param.nbytes for param in params.values()))
    names, more = list(kinds), f" and {len(kinds) - 3} more" if len(kinds) > 3 else ""
    sparse = "; a sparse one is counted whole, and sends the rows that it has" if "sparse" in kinds.values() else ""
    log.log(
        logging.WARNING if share > MUCH else logging.INFO,
        "no method takes gradients that are %s, so those of %s%s travel as torch sends them: %.3g %% of the bytes of "
        "an uncompressed step%s",
        " or ".join(sorted(set(kinds.values()))),
        ", ".join(names[:3]),
        more,
        100 * share,
        sparse,
    )
