"""FSDP1 (``FullyShardedDataParallel``): its communication hook, with a compressed reduce-scatter.

Law: FSDP1 flattens the parameters of a module into one and cuts it into equal parts wherever that may be, so residuals
are kept by module, not by parameter, and methods see vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.errors import require
from gradwire.exchange import Exchange
from gradwire.integrations._cut import Sharded
from gradwire.integrations._ownership import Caller
from gradwire.integrations._setup import check_dtypes, prepare_named
from gradwire.integrations._sharded import ReduceScatter, ShardedState, check_scatter
from gradwire.integrations._state import Units

__all__ = ["FSDP1State", "compress_fsdp1", "fsdp1_hook"]


class FSDP1State(ShardedState):
    """The exchange of a model under FSDP1. Made by ``compress_fsdp1``."""

    def __init__(self, model: nn.Module, compressor: Any, scaler: Any, options: Mapping[str, Any]) -> None:
        super().__init__()
        flats = flat_parameters(model)
        group = cast(Any, model).process_group if hasattr(model, "_handle") else None
        # Parameters that are offloaded wait on the CPU; their gradients do not.
        device = getattr(model, "compute_device", None) or torch.device("cpu")

        def select() -> dict[str, nn.Parameter]:
            require(bool(flats), "model", "a FullyShardedDataParallel module", type(model).__name__)
            strategy = cast(Any, model).sharding_strategy.name
            sharded = strategy in ("FULL_SHARD", "SHARD_GRAD_OP")
            require(sharded, "sharding_strategy", "FULL_SHARD or SHARD_GRAD_OP; without shards use DDP", strategy)
            Units.check(scaler, None)
            check_dtypes(flats)
            return flats

        self.exchange, _ = prepare_named(select, device, compressor, options, group,
                                         Caller("gradwire.compress_fsdp1", "fsdp"), carrier=model, fsdp=1)  # fmt: skip
        check_scatter(self.exchange)
        self.units = Units(scaler, None, {})
        self.units.read_ahead(model, self.exchange.device)
        self.exchange.skips_steps = self.units.scaler is not None
        world = self.exchange.channel.world
        self.cuts = {name: Sharded(name, (numel_of(flat),), world) for name, flat in flats.items()}
        self.parts = {name: ReduceScatter(self, partial(list, [cut]), index)
                      for index, (name, cut) in enumerate(self.cuts.items())}  # fmt: skip
        self.sizes = {name: cut.padded for name, cut in self.cuts.items()}

    def check(self, exchange: Exchange) -> None:
        """As at set-up."""
        check_scatter(exchange)


def fsdp1_hook(part: ReduceScatter, grad: Tensor, output: Tensor) -> None:
    """What FSDP1 calls with a module's flat gradient, padded, and room for this rank's part of the mean."""
    part(output, grad, cast(dist.ProcessGroup, None), dist.ReduceOp.AVG)


def flat_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """This rank's shard of each module's flat parameter, by the module's name."""
    handles = ((name or "root", getattr(module, "_handle", None)) for name, module in model.named_modules())
    return {name: handle.flat_param for name, handle in handles if handle is not None}


def numel_of(flat: nn.Parameter) -> int:
    """Of a flat parameter, before it was padded to be cut."""
    return cast(Any, flat)._unpadded_unsharded_size.numel()  # type: ignore[no-any-return]


def compress_fsdp1(model: nn.Module, compressor: Any = "qsgd", *, scaler: Any = None, **options: Any) -> FSDP1State:
    """Reduce the gradients of a ``FullyShardedDataParallel`` model compressed. New models should use ``compress_fsdp``.

    All ranks must call it, before the first forward. Patterns are over names of wrapped modules, ``"root"`` for the
    model itself.

    Args:
        model: the outermost FSDP module, FULL_SHARD or SHARD_GRAD_OP.
        compressor: of one message and fixed size, by name or as an object.
        scaler: a ``ShardedGradScaler``: residuals follow its scale.
        options: as for ``compress_ddp``; there is one strategy.

    Returns:
        The state; ``state.metrics()`` tells what went over the wire.

    Raises:
        ConfigError: a wrong option, or a model that is not wrapped.
        GroupError: ranks were given different options.
    """
    state = FSDP1State(model, compressor, scaler, options)
    cast(Any, model).register_comm_hook(None, fsdp1_hook)
    for name, module in model.named_modules():
        if (part := state.parts.get(name or "root")) is not None:
            # The public call gives all modules one state, and the hook is not told which module calls.
            cast(Any, module)._comm_hook_state = part
    return state
