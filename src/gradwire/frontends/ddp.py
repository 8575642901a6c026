"""Communication hook for DistributedDataParallel.

Invariants:
    * DDP launches buckets in the order of their indices on all ranks. One thread exchanges them in that order, so it
      may issue as many dependent collectives for each bucket as it needs. The hook hands over the bucket and returns a
      future; the backward pass goes on meanwhile.
    * On NCCL the same code runs in the hook itself, on a stream of its own, and the future carries that stream's event.
    * Where only an exact mean is wanted, no collective depends on another one. Then the hook itself starts the sum of
      each bucket. The digests that compare the ranks were sent with the first bucket, and are checked after the last.
"""

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire import kernels
from gradwire._short_traceback import short_traceback
from gradwire.auto.step_record import moment
from gradwire.engine.checkpoint import OnResize
from gradwire.engine.exchange import USED, Exchange
from gradwire.engine.part import nonfinite
from gradwire.engine.plan import Named, bucket_text
from gradwire.errors import ConfigError, Verbatim, require
from gradwire.frontends._dropped import DroppedGradients
from gradwire.frontends._model_copies import CopiedState, forget_copied, note_copies
from gradwire.frontends._regroup import Regroup
from gradwire.frontends._traced import Arrivals
from gradwire.frontends.ownership import Caller, averaged_by_ddp, hooked, is_sharded
from gradwire.frontends.setup import (
    frozen_in,
    in_memory,
    kind_of,
    prepare,
    ranks_in,
    refuse,
    refuse_steps_in_backward,
    uncompiled,
)
from gradwire.frontends.state_units import ExchangeState, Reading, Scratch, Units
from gradwire.frontends.uncompressed import reduced_by_ddp
from gradwire.modes import ordinary_modes
from gradwire.transport.channel import divided
from gradwire.transport.handshake import BUCKETS_BEFORE
from gradwire.transport.worker import Worker

__all__ = ["GradwireState", "compress_ddp", "gradwire_hook"]


CALLER = Caller(
    "gradwire.compress_ddp",
    "ddp",
    "give it another method with state.change(...), or close it first with "
    "state.close() and wrap the module into a new DDP model",
)

DROPPED = (
    "Exchange nothing that you drop: run the forward and the backward pass inside `with model.no_sync():`, or call "
    "`model.module(x)` there"
)


class GradwireState(ExchangeState):
    """The state of the hook: the names of the parameters, the exchange, and the thread that talks to the network.

    Args:
        model: the DDP model, compiled or not, or the module inside it.
        process_group: the ranks; None is the model's own group, or the default one. A DDP model takes no others.
        compressor, scaler, lr_correction, optimizer, variance_correction, options: arguments of ``compress_ddp``.

    Raises:
        ConfigError: a wrong option.
        GroupError: ranks were given different options.
    """

    @ordinary_modes()
    def __init__(
        self,
        model: nn.Module,
        compressor: Any = "auto",
        process_group: dist.ProcessGroup | None = None,
        *,
        scaler: Any = None,
        lr_correction: Optimizer | None = None,
        optimizer: Optimizer | None = None,
        variance_correction: Optimizer | None = None,
        **options: Any,
    ) -> None:
        model = uncompiled(model)
        forget_copied(model)
        module, group = model, process_group
        if isinstance(model, DistributedDataParallel):
            module, group = model.module, model.process_group
        # Weakly: torch owns a group, and one that outlives its end would abort the process.
        self._group = None if group is None else weakref.ref(group)

        # Called inside the comparison of the ranks: what it raises on one of them is raised on all.
        def check() -> None:
            exchanged = [param for param in reduced.params.values() if param.requires_grad]
            self._check_training(exchanged, scaler, lr_correction, optimizer, variance_correction)
            python = bool(reduced.sparse) and getattr(model, "_use_python_reducer", False)
            allowed = "False under optimize_ddp='python_reducer', which reduces no sparse gradients"
            require(not python, "sparse of an embedding", allowed, python)
            if isinstance(model, DistributedDataParallel):
                check_ddp(model, process_group)

        reduced = reduced_by_ddp(model)
        # Each of them adds a message, or moves the ends of buckets.
        told = {name: getattr(model, name, None) for name in ("find_unused_parameters", "bucket_bytes_cap")}
        prepared = prepare(
            module,
            compressor,
            options,
            group,
            CALLER,
            reduced.params,
            reduced.sparse,
            check=check,
            device=next((param.device for param in reduced.params.values()), None),
            carrier=model,
            ddp=told,
            variance_correction=variance_correction is not None,
            **Units.facts(scaler, lr_correction),
        )
        self.exchange, params = prepared.exchange, prepared.params
        self.correct(variance_correction)
        self.sizes = {name: param.numel() for name, param in params.items()}
        self.frozen = frozen_in(module)
        self._frozen_params = [
            (name, param)
            for name, param in module.named_parameters()
            if name in self.frozen and name not in reduced.ignored
        ]
        self._model = weakref.ref(model)  # DDP's reducer holds this state, and a cycle through C++ is never freed.
        self._wrapped = isinstance(model, DistributedDataParallel)
        self._names = {id(param): (name, tuple(in_memory(param).shape)) for name, param in params.items()}
        compressed = prepared.compressed
        self._follow_training(
            Units(scaler, lr_correction, {id(param): name for name, param in params.items()}),
            {id(param): self._names[id(param)] for param in compressed.values()},
            optimizer or variance_correction or lr_correction,
            model,
            corrected=variance_correction is not None,
        )
        self._worker = Worker()
        self._scratch = Scratch()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._buckets: list[list[str]] = []
        self._compared: list[list[str]] = []
        self._handed_out: dict[int, tuple[list[int], tuple[Named, ...], list[str]]] = {}
        self._glancing = False
        self._status = torch.zeros(1, dtype=torch.int32, device="cpu")
        self._regroup: Regroup | None = None
        # A function of the class: a bound one would keep this state, and its group, until the garbage collector comes.
        self._direct: Callable[[GradwireState, Tensor, tuple[Named, ...]], Future[Tensor]] | None = None
        self._uncompressed = prepared.uncompressed  # A bucket of DDP's has gradients of one kind.
        self._dtypes = {param.dtype for param in compressed.values()}
        self.traced = bool(getattr(model, "_use_python_reducer", False))
        if self.traced:
            Arrivals(model, prepared, self.units, self._worker)
        else:
            watched = {id(param): param for param in compressed.values()}
            self.dropped = DroppedGradients(self.exchange, watched, DROPPED, hooks=True)
            if self._wrapped:
                model.register_forward_pre_hook(refuse_late_steps)
        note_copies(model, repr(self.exchange.methods.compressor))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy nothing that exchanges, neither of the model nor of this state: see ``_model_copies.py``."""
        return CopiedState, (repr(self.exchange.methods.compressor),)

    def close(self) -> None:
        """End the communication thread and lend the process group to the next state; the hook must not run again.

        Nothing more is needed than to let go of the model and the state, which does the same.
        """
        self.between_steps("close")
        # The thread first: it uses the channel, which another exchange may get afterwards.
        self._worker.close()
        self._give_back()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that every integration saves, and the parameters of each bucket of the next step."""
        return {**super().state_dict(), "buckets": json.dumps(self._buckets)}

    def load_state_dict(self, state: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        """Continue as every state does; the first steps are exchanged in the buckets of the resumed run."""
        super().load_state_dict(state, on_resize)
        buckets = json.loads(state.get("buckets", "[]"))
        same = state["world"] == self.exchange.channel.world
        same = same and sorted(chain.from_iterable(buckets)) == sorted(self.sizes)
        self._buckets, self._regroup = (buckets, Regroup(buckets)) if same else ([], None)

    def start(self, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Start the exchange of one bucket."""
        buffer, first = bucket.buffer(), bucket.index() == 0
        buffer = buffer.coalesce() if buffer.is_sparse else buffer
        params, names = self._named(bucket)
        opening = self._first(names, buffer.device) if first else None
        self._buckets.append(names)
        if opening is not None and (self._direct is not None or self._regroup is not None):
            # No job of this bucket is put into the queue now that could open the step.
            self._submit(buffer.device, opening)
            # A bucket that is exchanged in its place in spite of that must not open the step once more.
            opening = None
        if bucket.is_last() and self.dropped is not None:
            self.dropped.at_the_end_of_this_pass(kept=self._direct is None)
        if self._direct is not None:
            # It is started here and not on the thread, because after the last bucket DDP may start one more collective
            # on the same group, of which parameters were used.
            future = self._direct(self, buffer, params)
            if bucket.is_last():
                if self._glancing:
                    # The step must not end before the glance, which is on the thread, has.
                    return self._submit(buffer.device, future.wait)
                # After the last sum was posted, because sums of DDP's buckets need not wait for the comparison of the
                # ranks.
                self.exchange.channel.settle()
            return future
        if self._regroup is None or names[0] in self._uncompressed:
            ready = moment(buffer.device) if self.exchange.controller is not None else None
            future = self._submit(buffer.device, partial(self._job, buffer, params, ready, opening))
        else:
            future = self._regroup.hold(buffer, params)
        if self._regroup is not None and bucket.is_last():
            # The last bucket of the step is held now, so all gradients of the saved buckets are there.
            done = self._submit(buffer.device, partial(self._regroup.exchange, self._job))
            done.then(self._regroup.settle)
        return future

    def _first(self, names: list[str], device: torch.device) -> Callable[[], object] | None:
        """Begin a step, whose first bucket has these parameters; return what is left to do of that before the bucket is
        exchanged, in the order of the exchanges.
        """
        if not self._wrapped:
            self._find_model()
        self._check_model()
        changed = self._buckets != self._compared
        if changed:
            self._compared = self._buckets
            # The buckets of a step are known when it has ended, so those of the last one are compared in this one.
            self.exchange.protocol.compare(**{BUCKETS_BEFORE: [bucket_text(tuple(each)) for each in self._buckets]})
        self._buckets = []
        if self._regroup is not None and not self._regroup.needed(names):
            self._regroup = None
        controller, reading = self.exchange.controller, self.units.read()
        self._direct, self._glancing = None, False
        # The last step's jobs are done, so this thread may do the thread's work.
        if controller is not None and self._regroup is None and not self.exchange.methods.policy.overrides:
            self.exchange.begin_step()
            if controller.idle:
                controller.recorder.leave_to_ddp(spoilt=False)
                self._direct = GradwireState._reduce if controller.timed else GradwireState._add_up
                # Ranks whose buckets are new have not been compared with them.
                self._glancing = controller.glances or changed or not self._compared
            if self._glancing:
                # On the thread, because it waits for the other ranks, and DDP's own sums go on meanwhile.
                self._submit(device, partial(self._glance, reading, names))
            elif self._direct is None:
                return partial(self._open_step, reading, names)
            return None
        if self._regroup is None and self._plain(device):
            self._direct = GradwireState._mean
            if not self.exchange.channel.is_nccl:
                self._begin_step(reading, names)
                return None
        return partial(self._begin_step, reading, names)

    def _find_model(self) -> None:
        """Find the DDP model of the plain form, which is given the module inside and was registered afterwards."""
        self._wrapped, found = True, hooked(self)
        if found is not None:
            given = dist.group.WORLD if self._group is None else self._group()
            check_ranks(found, given, "which GradwireState finds if it is given the DDP model, not its module")
            self._model = weakref.ref(found)

    def _check_model(self) -> None:
        late = [name for name, param in self._frozen_params if param.requires_grad]
        if late:
            allowed = "those that were trainable when DDP was made; after unfreezing make it anew"
            require(False, "parameters", allowed, late)
        if getattr(self._model(), "_divide_by_initial_world_size", True) is False:
            allowed = "True: torch does not tell a hook who has joined"
            require(False, "divide_by_initial_world_size", allowed, False)

    def names_of(self, bucket: dist.GradBucket) -> tuple[str, ...]:  # type: ignore[name-defined]
        """Return the names of a bucket's parameters."""
        return tuple(self._named(bucket)[1])

    def _named(self, bucket: dist.GradBucket) -> tuple[tuple[Named, ...], list[str]]:  # type: ignore[name-defined]
        """The parameters of a bucket, and their names; both are made anew only where DDP has made new buckets."""
        given = bucket.parameters()
        known, ids = self._handed_out.get(bucket.index()), list(map(id, given))
        if known is None or known[0] != ids:
            params = tuple(self._name(param) for param in given)
            known = ids, params, [name for name, _ in params]
            self._handed_out[bucket.index()] = known
        return known[1], known[2]

    def _name(self, param: Tensor) -> Named:
        named = self._names.get(id(param))
        if named is None:
            raise ConfigError(
                f"a parameter of shape {tuple(param.shape)} is not one of the model that the state was "
                "made for: make a new GradwireState after replacing or unfreezing parameters"
            )
        return named

    def _begin_step(self, reading: Reading, names: list[str]) -> None:
        self.exchange.begin_step()
        self._open_step(reading, names)

    def _open_step(self, reading: Reading, names: list[str]) -> None:
        self.exchange.open(first=names)
        self.units.follow(self.exchange, *reading)

    def _glance(self, reading: Reading, names: list[str]) -> Tensor:
        """Compare the ranks, and let the controller look at a window that is full, beside buckets that DDP's own group
        adds up.
        """
        controller = self.exchange.controller
        assert controller is not None
        self._open_step(reading, names)
        if controller.glances:
            controller.glance()
        self.exchange.channel.settle()
        return torch.empty(0, device="cpu")

    def _plain(self, device: torch.device) -> bool:
        """Return whether all buckets are averaged in place; those that Gloo sums for a GPU go through the thread."""
        return self._served(device) and all(map(self.exchange.plain, self._dtypes))

    def _served(self, device: torch.device) -> bool:
        """Return whether the channel sums tensors on a device without a copy."""
        return device.type == "cpu" or self.exchange.channel.is_nccl

    def _mean(self, buffer: Tensor, params: Sequence[Named]) -> Future[Tensor]:
        return self.exchange.begin_mean(buffer)

    def _reduce(self, buffer: Tensor, params: tuple[Named, ...]) -> Future[Tensor]:
        """Reduce as DDP does without a hook, and time it, because ``auto`` watches uncompressed steps."""
        if params[0][0] in self._uncompressed:
            return self._add_up(buffer, params)
        controller = self.exchange.controller
        assert controller is not None
        device = buffer.device
        run = controller.recorder.note(params, moment(device), buffer.itemsize)

        def arrived(_: Tensor) -> None:
            run.done = moment(device)

        return self._begin_sum(buffer, arrived)

    def _add_up(self, buffer: Tensor, params: Sequence[Named]) -> Future[Tensor]:
        """Reduce as DDP does without a hook, and look whether gradients are finite."""
        return self._begin_sum(buffer, lambda _: None)

    def _begin_sum(self, buffer: Tensor, arrived: Callable[[Tensor], object]) -> Future[Tensor]:
        """Start to average a bucket on DDP's own group; ``arrived`` is called with the mean.

        A mean of parts of finite values is finite, and a rank's own part is divided in any case. So on a CPU each rank
        looks at its own in that pass, and the controller sends it to the others with the times.
        """
        exchange, controller = self.exchange, self.exchange.controller
        assert controller is not None
        channel, group = exchange.channel, None if self._group is None else self._group()
        exchange.counters.dense_bytes += channel.summed(buffer)
        if buffer.device.type != "cpu":
            look = exchange.watched()

            def arrived_on_device(mean: Tensor) -> None:
                arrived(mean)
                look(mean)

            return channel.begin_sum(divided(buffer, channel.world), group, arrived_on_device)
        if buffer.dtype == torch.float32 and not buffer.is_sparse:
            kernels.scale(buffer, 1 / channel.world, self._status)
        else:
            self._status += nonfinite(divided(buffer, channel.world))
        # The rank's own gradients, which were just divided and are in the cache: to look at the mean would be another
        # pass over memory.
        if self._status.item():
            controller.recorder.leave_to_ddp(spoilt=True)
            exchange.rollback.note([self._status.bool().view(())])
            self._status.zero_()
        return channel.begin_sum(buffer, group, arrived)

    def _job(
        self,
        buffer: Tensor,
        params: Sequence[Named],
        ready: Any = None,
        opening: Callable[[], object] | None = None,
    ) -> Tensor:
        if opening is not None:
            opening()
        # A bucket of the run that is resumed must round as that run does; if all are plain, no other comes here.
        if params[0][0] in self._uncompressed or (self._regroup is not None and self._plain(buffer.device)):
            return self.exchange.mean(buffer)
        flat = self._scratch.float32(buffer)
        if getattr(self._model(), "find_unused_parameters", False):
            exchange_used(self.exchange, flat, params, buffer.itemsize, ready)
        else:
            given = buffer if flat is not buffer and self._served(buffer.device) else None
            self.exchange.run(flat, params, buffer.itemsize, ready, given)
        if flat is not buffer:
            # A mean that float32 holds may be infinite in 16 bits.
            self.exchange.rollback.note([nonfinite(buffer.copy_(flat))])
        return buffer

    def _submit(self, device: torch.device, job: Callable[[], Any]) -> Future[Any]:
        if not self.exchange.channel.is_nccl:
            return self._worker.submit(job)
        stream = self._streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        # The gradients are computed on the caller's stream, and may not be there yet.
        stream.wait_stream(torch.cuda.current_stream(device))
        future: Future[Any] = Future(devices=[device])
        with torch.cuda.stream(stream):
            # On this stream, so that the future's event lies behind the job.
            future.set_result(job())
        return future


@torch.no_grad()
def exchange_used(
    exchange: Exchange, flat: Tensor, params: Sequence[Named], itemsize: int = 4, ready: Any = None
) -> None:
    """Exchange as ``Exchange.run`` does, but a parameter that no rank used sends nothing: neither its gradient nor what
    is kept for it is written, because an optimizer that saw a gradient would decay the parameter.

    Buckets of DDP with ``find_unused_parameters`` do not say whose gradient is there. One small all-reduce for each
    bucket tells; a gradient that is zero in every element on every rank counts as unused, too.
    """
    views = torch.split(flat, [torch.Size(shape).numel() for _, shape in params])
    uses = torch.stack([view.any() for view in views]).to(torch.uint8).mul_(USED)
    exchange.note_pending(uses, {i: params[i][0] for i in _doubtful(uses)})
    # A rank cannot know alone that no other used the parameter.
    exchange.any_rank(uses)
    exchange.run(flat, params, itemsize, ready, uses={i: uses[i] for i in _doubtful(uses)})


def _doubtful(uses: Tensor) -> list[int]:
    """The places of parameters that are not known to be used: an accelerator is not asked, so there all of them."""
    asked = uses.tolist() if uses.device.type == "cpu" else [0] * len(uses)
    return [i for i, use in enumerate(asked) if use != USED]


ITS_MODULE = Verbatim("its module")
"""The model that the plain form was given; made here, because torch's compiler cannot trace how a text is made."""


def gradwire_hook(
    state: GradwireState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The hook in plain form: ``model.register_comm_hook(GradwireState(model, "twobit"), gradwire_hook)``."""
    if isinstance(bucket, tuple):
        # The Python reducer's call for one parameter, whose own hook sees to it.
        require(state.traced, "model", "the DDP model itself under optimize_ddp='python_reducer'", ITS_MODULE)
        return None  # type: ignore[return-value]
    return state.start(bucket)


def check_ddp(model: DistributedDataParallel, group: dist.ProcessGroup | None) -> None:
    """Refuse a DDP model that would not run the hook, or runs over other ranks."""
    require(
        model.mixed_precision is None,
        "mixed_precision of DistributedDataParallel",
        "None, because it is a hook of its own; use torch.autocast",
        model.mixed_precision,
    )
    skips = model.find_unused_parameters and getattr(model, "skip_all_reduce_unused_params", False)
    allowed = "False with find_unused_parameters: DDP leaves out buckets, and tells no hook which step they are of"
    require(not skips, "skip_all_reduce_unused_params", allowed, skips)
    if model._comm_hooks:
        hook, state = model._comm_hooks[0]
        ours = isinstance(state, GradwireState)
        remedy = "go on with its state: state.change(...) takes another method" if ours else "wrap the module anew"
        raise ConfigError(
            f"model must be a DDP model without a communication hook, got one that has "
            f"{getattr(hook, '__name__', hook)!r} already, and torch takes one; {remedy}"
        )
    if group is not None:
        check_ranks(model, group, "or left out")


def refuse_late_steps(model: nn.Module, _: object) -> None:
    """Refuse optimizers that step in the backward pass, before DDP's first forward pass gives them the only hook."""
    if not torch.compiler.is_compiling() and not model._lazy_init_ran:
        refuse_steps_in_backward(model)


def check_ranks(model: DistributedDataParallel, group: dist.ProcessGroup | None, remedy: str) -> None:
    """Refuse a group of other ranks than those over which a DDP model averages."""
    ranks, given = dist.get_process_group_ranks(model.process_group), ranks_in(group)
    allowed = f"of the DDP model's own ranks {ranks}, {remedy}"
    require(set(given) == set(ranks), "process_group", allowed, Verbatim(f"one of ranks {given}"))


def not_wrapped(model: object) -> ConfigError:
    """Say what to do with an object that is no DDP model."""
    params = list(model.parameters()) if isinstance(model, nn.Module) else []
    remedy = "for a plain training loop use gradwire.compress_optimizer"
    if any(map(is_sharded, params)):
        remedy = "for a sharded model use gradwire.compress_fsdp, or compress_fsdp1 for FullyShardedDataParallel"
    elif params and averaged_by_ddp(params):
        remedy = "give the DDP model itself, not the module inside it"
    elif isinstance(model, type):
        remedy = "give an object of it, wrapped"
    return ConfigError(f"model must be a torch.nn.parallel.DistributedDataParallel, got {kind_of(model)}; {remedy}")


@short_traceback
def compress_ddp(model: nn.Module, compressor: Any = "auto", **options: Any) -> GradwireState:
    """Exchange the gradients of a DDP model compressed, from the next backward on.

    All ranks must call it, with the same arguments; a difference raises the same error on each of them.

    Args:
        model: wrapped, compiled or not, and not yet given a communication hook.
        compressor: "auto" watches uncompressed steps, tries methods on the gradients, and gives each bucket what makes
            the step shortest within ``budget``; where nothing is to be gained it is DDP. Or a registered name
            (``gradwire methods`` lists them), a compressor, or a recipe of ``from_params``.
        budget: an option, the budget of "auto": "exact" (bfloat16 and nothing more), "safe", the default (adds at most
            15 % to the variance that the batch leaves in the mean gradient), or "small" (at most as much as there is).
        decisions: an option, for "auto" the decisions of an earlier run, to be made again in the same steps.
        scaler: an option, a ``GradScaler``: residuals follow its scale.
        lr_correction: an option, the optimizer: residuals are rescaled when a schedule changes its learning rates.
        optimizer: an option, the optimizer: a warning says at once, and not at its first step, if the method harms it.
        variance_correction: an option, an optimizer such as Adam: its learning rates are multiplied by what the noise
            of the code shortens its steps by, so that rates found without compression can be kept.
        options: ``memory, strategy, min_numel, exclude, overrides, start_after, schedule, seed, timeout, force`` as in
            ``gradwire.engine.settings.Settings``; anything else is a parameter of a compressor given by name.

    Returns:
        The hook's state; ``state.metrics()`` tells what went over the wire.

    Raises:
        ConfigError: a wrong option, or a model that is not wrapped or has a hook.
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
    wrapped = uncompiled(model)
    if not isinstance(wrapped, DistributedDataParallel):
        # The other ranks are in the set-up and wait for this one: they are given its error.
        refuse(not_wrapped(model), CALLER, options.get("process_group"), model)
    state = GradwireState(wrapped, compressor, **options)
    wrapped.register_comm_hook(state, gradwire_hook)
    return state
