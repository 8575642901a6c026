"""DistributedDataParallel: a communication hook.

Law: DDP launches buckets in the order of their indices on all ranks, so one thread that works them off in that order
may issue as many dependent collectives for each as it likes. The hook hands over the bucket and returns a future;
backward goes on meanwhile. On NCCL the same code runs at once on a stream of its own, and the future carries the event.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.comm._part import nonfinite
from gradwire.errors import ConfigError, require
from gradwire.exchange import Named
from gradwire.integrations._setup import in_memory, prepare
from gradwire.integrations._state import ExchangeState, Units, as_float32
from gradwire.worker import Worker

__all__ = ["GradwireState", "compress_ddp", "gradwire_hook"]


class GradwireState(ExchangeState):
    """What the hook knows: the names of the parameters, the exchange, and the thread that talks to the network.

    Args:
        model: the DDP model, or the module inside it.
        compressor: a registered name, a compressor, or a recipe of ``from_params``.
        process_group: the ranks; None is the model's own group, or the default one.
        scaler: of the loss, so that residuals follow its scale; None: the loss is not scaled, or its scale is fixed.
        lr_correction: the optimizer, so that what waits is applied with the rate it was meant for; None: as it is sent.
        options: those of ``gradwire.settings.Settings``, and the compressor's parameters if it is given by name.

    Raises:
        ConfigError: a wrong option.
        GroupError: ranks were given different options.
    """

    def __init__(
        self, model: nn.Module, compressor: Any = "twobit", process_group: dist.ProcessGroup | None = None,
        *, scaler: Any = None, lr_correction: Optimizer | None = None, **options: Any,
    ) -> None:  # fmt: skip
        module: nn.Module = model
        if isinstance(model, DistributedDataParallel):
            module = model.module
            process_group = process_group or model.process_group
        check = partial(check_model, model, scaler, lr_correction)
        self.exchange, params = prepare(module, compressor, options, process_group, check=check)
        self.units = Units(scaler, lr_correction, {id(param): name for name, param in params.items()})
        self.sizes = {name: param.numel() for name, param in params.items()}
        self.exchange.skips_steps = self.units.scaler is not None
        self._names = {id(param): (name, tuple(in_memory(param).shape)) for name, param in params.items()}
        self._worker = Worker()
        self._read: list[tuple[float | None, dict[str, float]]] = []
        if self.units.scaler is not None and self.exchange.device.type == "cuda":
            model.register_forward_pre_hook(self._before_forward)
        self._scratch: dict[int, Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def close(self) -> None:
        """End the communication thread; the hook must not run again.

        The process group stays until ``destroy_process_group()``: torch names groups by their ranks, and a new one of
        the same name would meet the old one's addresses.
        """
        self._worker.close()

    def start(self, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Begin the exchange of one bucket."""
        buffer, first = bucket.buffer(), bucket.index() == 0
        params = [self._name(param) for param in bucket.parameters()]
        if buffer.layout != torch.strided or not buffer.is_floating_point():
            names = ", ".join(name for name, _ in params)
            raise ConfigError(f"gradient of {names} must be dense floating point, got {buffer.layout} {buffer.dtype}")
        unit = self._unit() if first else None
        job = partial(self._job, buffer, params, bucket.index(), unit)
        if self.exchange.channel.is_nccl:
            return self._on_stream(buffer.device, job)
        return self._worker.submit(job)

    def _name(self, param: Tensor) -> Named:
        named = self._names.get(id(param))
        if named is None:
            raise ConfigError(
                f"a parameter of shape {tuple(param.shape)} is not one of the model that the state was "
                "made for: make a new GradwireState after replacing or unfreezing parameters"
            )
        return named

    def _unit(self) -> tuple[float | None, dict[str, float]]:
        """Loss scale and learning rates; on a GPU the scale was read before the forward pass."""
        return self._read.pop() if self._read else self.units.read()

    def _before_forward(self, *_: object) -> None:
        # The scaler has waited for the device at its last step; in the middle of a backward pass reading would.
        self._read[:] = [self.units.read()]

    def _job(
        self, buffer: Tensor, params: list[Named], index: int, unit: tuple[float | None, dict[str, float]] | None
    ) -> Tensor:
        if unit is not None:
            self.exchange.begin_step()
            self.units.follow(self.exchange, *unit)
        flat = as_float32(buffer, self._scratch, index)
        self.exchange.run(flat, params, buffer.itemsize)
        if flat is not buffer:
            # A mean that float32 holds may be infinite in 16 bits.
            self.exchange.note(nonfinite(buffer.copy_(flat)))
        return buffer

    def _on_stream(self, device: torch.device, job: Callable[[], Tensor]) -> Future[Tensor]:
        stream = self._streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        future: Future[Tensor] = Future(devices=[device])
        with torch.cuda.stream(stream):
            try:
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]
        return future


def gradwire_hook(
    state: GradwireState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The plain form: ``model.register_comm_hook(GradwireState(model, "twobit"), gradwire_hook)``."""
    return state.start(bucket)


def check_model(model: nn.Module, scaler: Any, lr_correction: Any) -> None:
    """Refuse what the hook cannot serve.

    Raises:
        ConfigError: compiled autograd would trace the hook, parameter by parameter; a scaler that is none.
    """
    Units.check(scaler, lr_correction)
    traced = bool(getattr(model, "_use_python_reducer", False))
    require(not traced, "torch._dynamo.config.optimize_ddp", "'ddp_optimizer', as it is by default", "python_reducer")


def fail(error: Exception) -> None:
    raise error


def compress_ddp(model: nn.Module, compressor: Any = "twobit", **options: Any) -> GradwireState:
    """Exchange the gradients of a DDP model compressed, from the next backward on.

    All ranks must call it, with the same arguments; a difference raises the same error on each of them.

    Args:
        model: wrapped, and not yet given a communication hook.
        compressor: a registered name (``gradwire methods`` lists them), a compressor, or a recipe of ``from_params``.
        scaler: in options, a ``GradScaler``: residuals follow its scale.
        lr_correction: in options, the optimizer: residuals are rescaled when a schedule changes its learning rates.
        options: ``memory, strategy, min_numel, exclude, overrides, start_after, schedule, seed, timeout, force`` as in
            ``gradwire.settings.Settings``; anything else is a parameter of a compressor given by name.

    Returns:
        The hook's state; ``state.metrics()`` tells what went over the wire.

    Raises:
        ConfigError: a wrong option, or a model that is not wrapped.
        GroupError: ranks were given different options.

    Example:
        >>> import os, torch, torch.distributed as dist, gradwire
        >>> os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
        >>> state = gradwire.compress_ddp(model, "twobit", threshold=1e-3)
        >>> model(torch.ones(2, 64)).sum().backward()
        >>> state.metrics()["steps"]
        1
        >>> dist.destroy_process_group()
    """
    if not isinstance(model, DistributedDataParallel):
        error = ConfigError(
            f"model must be a torch.nn.parallel.DistributedDataParallel, got {type(model).__name__}; "
            "for a plain training loop use gradwire.compress_optimizer"
        )
        if dist.is_initialized():
            prepare(model, compressor, options, None, check=partial(fail, error))  # So that the other ranks hear of it.
        raise error
    state = GradwireState(model, compressor, **options)
    model.register_comm_hook(state, gradwire_hook)
    return state
