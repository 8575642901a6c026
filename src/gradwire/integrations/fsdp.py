"""FSDP2 (``fully_shard``): a compressed reduce-scatter, or a compressed all-reduce between replicas.

Law: FSDP hands over the gradients of one module at a time, cut by rows into a part for each rank, and calls in the
order of backward, the same on all ranks. Residuals are kept by parameter, in row order, padded to whole rows for each
rank. FSDP waits for nothing on a CPU, so a call there returns when its result is there; on NCCL it runs on the stream
that FSDP called it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.comm._part import Piece, Unit, nonfinite
from gradwire.comm._scatter import ScatterSession
from gradwire.comm.base import Site
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.compressors.none import Identity
from gradwire.errors import ConfigError, require
from gradwire.exchange import Exchange
from gradwire.integrations._setup import Prepared, prepare, share_start
from gradwire.integrations._state import ExchangeState, Units, as_float32
from gradwire.memory.base import Memory
from gradwire.memory.none import NoMemory
from gradwire.plan import Named
from gradwire.saved import OnResize
from gradwire.types import Key

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

__all__ = ["FSDPState", "compress_fsdp"]


class Sharded:
    """A parameter as FSDP cuts it.

    Args:
        name: in the model.
        param: a ``DTensor``, sharded by rows.
        world: number of shards.
    """

    def __init__(self, name: str, param: nn.Parameter, world: int) -> None:
        shape = tuple(param.shape)
        rows = -(-shape[0] // world) if shape else 1
        self.name, self.rest, self.shape = name, shape[1:], (rows, *shape[1:])
        self.numel, self.padded = param.numel(), world * torch.Size(self.shape).numel()

    @property
    def chunk(self) -> int:
        """Elements of one shard."""
        return torch.Size(self.shape).numel()


class FSDPState(ExchangeState):
    """The exchange of a sharded model. Made by ``compress_fsdp``."""

    def __init__(self, model: nn.Module, compressor: Any, replicate: DeviceMesh | None, scaler: Any,
                 lr_correction: Any, options: Mapping[str, Any]) -> None:  # fmt: skip
        from torch.distributed.fsdp import FSDPModule

        self.exchange, params = self._prepare(model, compressor, replicate, scaler, lr_correction, options)
        self.units = Units(scaler, lr_correction, {id(param): name for name, param in params.items()})
        self.exchange.skips_steps = self.units.scaler is not None
        names = {id(param): name for name, param in params.items()}
        self._seen: set[int] = set()
        self._scratch: dict[int, Tensor] = {}
        self.sizes: dict[str, int] = {}
        world = mesh_of(params).size()
        for module in model.modules():
            if isinstance(module, FSDPModule) and (owned := managed(module, names)):
                shards = [Sharded(names[id(param)], param, world) for param in owned]
                self._attach(module, shards, whole=replicate is None)
        if replicate is not None:
            share_start([cast(Any, param).to_local() for param in params.values()], replicate.get_group())

    def _prepare(self, model: nn.Module, compressor: Any, replicate: DeviceMesh | None, scaler: Any,
                 lr_correction: Any, options: Mapping[str, Any]) -> Prepared:  # fmt: skip
        params = {name: param for name, param in model.named_parameters() if hasattr(param, "device_mesh")}
        require(bool(params), "model", "a module after fully_shard", type(model).__name__)
        mesh = mesh_of(params)
        remedy = "one dimension; for hybrid sharding shard over mesh['shard'] and give replicate=mesh['replicate']"
        require(mesh.ndim == 1, "mesh of the model", remedy, f"{mesh.ndim} dimensions")
        group = (replicate or mesh).get_group()
        check = partial(Units.check, scaler, lr_correction)
        prepared = prepare(model, compressor, options, group, check=check, sharded=mesh.size())
        if replicate is None:
            for each in (prepared.exchange.compressor, *prepared.exchange.policy.overrides.values()):
                check_scatter(prepared.exchange, each)
        return prepared

    def _attach(self, module: FSDPModule, shards: Sequence[Sharded], *, whole: bool) -> None:
        self.sizes |= {each.name: each.padded if whole else each.chunk for each in shards}
        index = len(self._scratch)
        self._scratch[index] = torch.zeros(0)
        if whole:
            module.set_custom_reduce_scatter(cast(Any, ReduceScatter(self, shards, index)))
        else:
            named = [(each.name, each.shape) for each in shards]
            module.set_all_reduce_hook(partial(self._between_replicas, named, index))

    def begin(self, index: int) -> None:
        """A module's turn; one that had its turn in this step begins the next."""
        if index in self._seen or not self._seen:
            self._seen.clear()
            self.exchange.begin_step()
            self.units.follow(self.exchange, *self.units.read())
        self._seen.add(index)

    def float32(self, tensor: Tensor, index: int) -> Tensor:
        """The tensor, or a float32 copy of it."""
        return as_float32(tensor, self._scratch, index)

    def _between_replicas(self, named: Sequence[Named], index: int, output: Tensor) -> None:
        """FSDP's all-reduce hook: the shards' mean over the replicas."""
        self.begin(index)
        check_size(output, sum(torch.Size(shape).numel() for _, shape in named))
        flat = self.float32(output, index)
        self.exchange.run(flat, named, output.itemsize)
        if flat is not output:
            self.exchange.note(nonfinite(output.copy_(flat)))

    def load_state_dict(self, state: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        """As for DDP, but a state of another number of ranks cannot be split anew: its shards were cut elsewhere.

        Raises:
            ConfigError
        """
        require(on_resize != "reshard", "on_resize", "'error' or 'reset' with sharded parameters", on_resize)
        super().load_state_dict(state, on_resize)


class ReduceScatter:
    """What FSDP calls in place of ``reduce_scatter_tensor``, for one module."""

    def __init__(self, state: FSDPState, shards: Sequence[Sharded], index: int) -> None:
        self.state, self.shards, self.index = state, shards, index
        self.session: ScatterSession | None = None
        self.main: Compressor | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for FSDP's gradients."""
        return torch.empty(*size, dtype=dtype, device=device)

    @torch.no_grad()
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        """The mean of the own part, or the sum where FSDP divides."""
        state, exchange = self.state, self.state.exchange
        known = op in (dist.ReduceOp.AVG, dist.ReduceOp.SUM)
        require(known, "gradient_divide_factor", "left as it is: the operation must be a mean or a sum", str(op))
        check_size(input_tensor, sum(each.padded for each in self.shards))
        state.begin(self.index)
        world, out = exchange.channel.world, output_tensor
        flat = state.float32(input_tensor, self.index)
        if out.dtype != torch.float32:
            out = torch.empty_like(out, dtype=torch.float32)
        key = Key(seed=exchange.seed, step=exchange.step, rank=exchange.channel.rank)
        exchange.counters.dense_bytes += (world - 1) * input_tensor.nbytes // world
        session = self._current()
        exchange.remember([each.name for each in self.shards])
        scale = 1.0 / world if op == dist.ReduceOp.AVG else 1.0
        exchange.note(session.run(flat, out, key, scale))
        if out is not output_tensor:
            exchange.note(nonfinite(output_tensor.copy_(out)))

    def _current(self) -> ScatterSession:
        """The session for the compressor of this step."""
        exchange = self.state.exchange
        main = exchange.policy.at(exchange.step - 1, exchange.compressor)
        if self.session is None or main != self.main:
            warm = exchange.step <= exchange.policy.start_after
            self.main = None if warm else main
            self.session = ScatterSession(self._pieces(Identity() if warm else main), site_of(exchange))
        return self.session

    def _pieces(self, main: Compressor) -> list[list[Piece]]:
        """For each owner a piece of every parameter, as they lie in FSDP's buffer."""
        exchange, lo = self.state.exchange, 0
        site, shards = site_of(exchange), []
        chosen = [self._chosen(each, main) for each in self.shards]
        kept = [site.keep(Unit(((each.name, each.padded),), (each.padded,), 0, code, memory))
                for each, (code, memory) in zip(self.shards, chosen, strict=True)]  # fmt: skip
        for owner in range(exchange.channel.world):
            pieces = []
            for each, (code, memory), flats in zip(self.shards, chosen, kept, strict=True):
                unit = Unit(((f"{each.name}#{owner}", each.chunk),), each.shape, lo, code, memory)
                part = slice(owner * each.chunk, (owner + 1) * each.chunk)
                views = {name: flat[part].view(each.shape) for name, flat in flats.items()}
                pieces.append(Piece(unit, memory, each.shape, lo, state=site.remember(unit), kept=views))
                lo += each.chunk
            shards.append(pieces)
        return shards

    def _chosen(self, each: Sharded, main: Compressor) -> tuple[Compressor, Memory]:
        exchange = self.state.exchange
        code = exchange.policy.choose(each.name, each.shape, main)
        if code is None or code.name == "none":
            return Identity(), NoMemory()
        return code, exchange.memory_for(code)


def site_of(exchange: Exchange) -> Site:
    keeper = exchange.keeper
    return Site(exchange.channel, exchange.device, keeper.keep, keeper.remember, keeper.recall, keeper.server)


def mesh_of(params: Mapping[str, Any]) -> DeviceMesh:
    return cast("DeviceMesh", next(iter(params.values())).device_mesh)


def managed(module: FSDPModule, known: Mapping[int, str]) -> list[nn.Parameter]:
    """The trainable parameters that FSDP reduces with this module, in the order of its buffer."""
    group = cast(Any, module)._get_fsdp_state()._fsdp_param_group
    params = [each.sharded_param for each in group.fsdp_params] if group is not None else []
    return [param for param in params if id(param) in known]


def check_scatter(exchange: Exchange, compressor: Compressor) -> None:
    """Refuse what one message to each owner cannot carry.

    Raises:
        ConfigError
    """
    if isinstance(compressor, MultiRound) or not compressor.fixed_size:
        why = "is averaged in rounds" if isinstance(compressor, MultiRound) else "has a variable size"
        raise ConfigError(
            f"compressor must be of one message and fixed size for a reduce-scatter, got {compressor.name!r}, which "
            f"{why}; with hybrid sharding and replicate= every method can be used"
        )
    memory = exchange.memory_for(compressor)
    plain = type(memory).begin is Memory.begin and type(memory).finish is Memory.finish
    require(plain, "memory", "one that keeps nothing of the mean for a reduce-scatter", memory.name)


def check_size(tensor: Tensor, numel: int) -> None:
    """Refuse the gradients of some of a module's parameters: nobody could say of which.

    Raises:
        ConfigError
    """
    if tensor.numel() != numel:
        raise ConfigError(
            f"gradients of a module must have {numel} elements, got {tensor.numel()}: parameters were unused, frozen "
            "or unfrozen; call model.set_reduce_scatter_unused_params(True), or compress_fsdp again after freezing"
        )


def compress_fsdp(
    model: nn.Module, compressor: Any = "qsgd", *, replicate: DeviceMesh | None = None, scaler: Any = None,
    lr_correction: Any = None, **options: Any,
) -> FSDPState:  # fmt: skip
    """Reduce the gradients of a ``fully_shard`` model compressed, from the next backward on.

    All ranks must call it, with the same arguments, after ``fully_shard`` and before the optimizer is made or after.
    Each rank keeps a residual of all that it sends: 4 bytes for each element of the whole model.

    Args:
        model: sharded by rows over one dimension of a mesh.
        compressor: a registered name, a compressor or a recipe; without ``replicate`` of one message and fixed size.
        replicate: for hybrid sharding: the model is sharded over ``mesh["shard"]`` alone, and its shards are averaged
            over this dimension, compressed; inside the shard dimension FSDP reduces as ever. A rank keeps residuals
            of its own shard only, and every method and strategy can be used.
        scaler: a ``GradScaler``: residuals follow its scale.
        lr_correction: the optimizer: residuals are rescaled when a schedule changes its learning rates.
        options: as for ``compress_ddp``; without ``replicate`` there is one strategy.

    Returns:
        The state; ``state.metrics()`` tells what went over the wire.

    Raises:
        ConfigError: a wrong option, or a model that is not sharded.
        GroupError: ranks were given different options.

    Example:
        >>> import os, torch, torch.distributed as dist, gradwire
        >>> from torch.distributed.fsdp import fully_shard
        >>> os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        >>> model = fully_shard(torch.nn.Linear(64, 64), mesh=mesh)
        >>> state = gradwire.compress_fsdp(model, "qsgd", bits=4)
        >>> dist.destroy_process_group()
    """
    return FSDPState(model, compressor, replicate, scaler, lr_correction, options)
