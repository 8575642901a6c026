"""Set-up of every integration before the first gradient: make a group, compare the ranks, announce the methods."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.constants import default_pg_timeout
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from gradwire import registry
from gradwire.auto.controller import AutoController
from gradwire.compressors import capabilities
from gradwire.compressors.casts.none import Identity
from gradwire.engine.adaptive import right_on_average
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named
from gradwire.engine.settings import Settings, valid_timeout
from gradwire.errors import ConfigError, GroupError, Verbatim, nearest, require
from gradwire.frontends.ownership import Caller, Ranks, own, refuse_owned
from gradwire.frontends.uncompressed import DTYPES, announce_uncompressed, kinds_of
from gradwire.metrics import Metrics
from gradwire.notices import log, tell
from gradwire.transport.channel import Channel
from gradwire.transport.failures import CALL_LIMIT, named, roll_call, timeout_of
from gradwire.transport.handshake import agree
from gradwire.transport.pool import Lease, lease

__all__ = [
    "AUTO",
    "Prepared",
    "agree_along",
    "backend_of",
    "backends_of",
    "check_dtypes",
    "check_initialised",
    "frozen_in",
    "in_memory",
    "is_auto",
    "kind_of",
    "memory_order",
    "prepare",
    "prepare_alone",
    "prepare_named",
    "private_channel",
    "private_group",
    "ranks_in",
    "refuse",
    "refuse_steps_in_backward",
    "share_start",
    "uncompiled",
    "warn_of_statistics",
]


AUTO = "auto"
"""Name in place of a compressor: measurements decide."""


def is_auto(compressor: object) -> bool:
    """Return whether measurements decide in place of a compressor.

    >>> is_auto("auto"), is_auto("auto:budget=small"), is_auto("twobit:threshold=auto")
    (True, True, False)
    """
    return isinstance(compressor, str) and compressor.partition(":")[0] == AUTO


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Find the module's trainable parameters by name.

    Raises:
        ConfigError: nothing to train, or the size of a parameter is not known yet.
    """
    params = {name: param for name, param in module.named_parameters() if param.requires_grad}
    require(
        bool(params), "model", "a module with trainable parameters", Verbatim(f"{type(module).__name__} without any")
    )
    check_made(params)
    return params


def check_made(params: Mapping[str, Tensor]) -> None:
    """Refuse parameters of lazy modules that were not called yet.

    Raises:
        ConfigError: the message names the parameter.
    """
    made = "made: a lazy module makes its parameters when it is called, so run the model once on a batch before"
    for name, param in params.items():
        require(not is_lazy(param), name, made, Verbatim("one without a shape"))


def refuse_steps_in_backward(model: object) -> None:
    """Refuse parameters whose optimizers step in the backward pass: under DDP they take the reducer's only hook, and in
    a plain loop they step before gradients are averaged.

    Raises:
        ConfigError: the message names a parameter.
    """
    named = model.named_parameters() if isinstance(model, nn.Module) else ()
    early = [name for name, param in named if hasattr(param, "_in_backward_optimizers")]
    allowed = (
        "one that steps after the backward pass: leave out _apply_optimizer_in_backward, and call optimizer.step()"
    )
    require(not early, "optimizer", allowed, Verbatim(f"one that steps in it, for {early[0] if early else ''!r}"))


def warn_of_statistics(caller: str, modules: Iterable[nn.Module]) -> None:
    """Warn if any of these modules keeps running statistics, which each worker computes of its own data.

    Args:
        caller: name of what exchanges, for the message.
    """
    # Those of ``SyncBatchNorm`` are computed together, and are the same on all ranks.
    found = {
        type(each).__name__
        for each in modules
        if isinstance(each, _NormBase) and not isinstance(each, nn.SyncBatchNorm) and each.track_running_stats
    }
    if found:
        log.warning(
            "%s exchanges no buffers: the running statistics of %s are each worker's own. Average them before the "
            "model is evaluated or saved; docs/optim.md shows how",
            caller,
            ", ".join(sorted(found)),
        )


def check_dtypes(params: Mapping[str, Tensor]) -> None:
    """Refuse parameters that no method takes, where nobody would send them.

    Raises:
        ConfigError: the message names the parameter.
    """
    check_made(params)
    for name, param in params.items():
        require(param.dtype in DTYPES, f"dtype of {name}", "float32, float16 or bfloat16", param.dtype)


class Prepared(NamedTuple):
    """The exchange, and the parameters that it is for, by name.

    ``uncompressed`` are those whose gradients no method takes, by name, each with its kind.
    """

    exchange: Exchange
    params: dict[str, nn.Parameter]
    uncompressed: dict[str, str]

    @property
    def compressed(self) -> dict[str, nn.Parameter]:
        """The parameters that the exchange may compress."""
        return {name: param for name, param in self.params.items() if name not in self.uncompressed}


def prepare(
    model: nn.Module,
    compressor: Any,
    options: Mapping[str, Any],
    group: dist.ProcessGroup | None,
    caller: Caller,
    only: Container[int] | None = None,
    sparse: Container[int] = (),
    check: Callable[[], None] = lambda: None,
    device: torch.device | None = None,
    carrier: object | None = None,
    **facts: Any,
) -> Prepared:
    """Make the exchange that all ranks agree on, on a process group of its own. All ranks must call it.

    Args:
        caller: caller, as error messages name it.
        only: ids of the parameters to exchange; None: all that are trainable.
        sparse: ids of the parameters that get sparse gradients.
        check: function that checks what else may be wrong with this rank's arguments; if it raises, all ranks raise.
        device: device of the gradients; None: that of the parameters.
        carrier: object that makes the exchange run; it owns its parameters no longer than this lives. None: the
            exchange.
        facts: further values that must be the same on all ranks.

    Raises:
        ConfigError: a wrong option, the same on every rank.
        GroupError: ranks were given different options or models; every rank raises the same text.
    """
    left: list[str] = []

    def select() -> dict[str, nn.Parameter]:
        refuse_steps_in_backward(model)
        check()
        params = {name: param for name, param in trainable(model).items() if only is None or id(param) in only}
        require(bool(params), "optimizer", "over parameters that are trainable", Verbatim("one over none"))
        left[:] = [name for name, _ in model.named_parameters() if name not in params]
        return params

    embeddings = partial(embeddings_of, model)
    return prepare_named(
        select,
        device or device_of(model),
        compressor,
        options,
        group,
        caller,
        carrier,
        embeddings,
        sparse=sparse,
        left=left,
        **facts,
    )


def device_of(model: object) -> torch.device:
    """The device of a model's parameters; the CPU where it has none, or is no model."""
    params = model.parameters() if isinstance(model, nn.Module) else iter(())
    return next((param.device for param in params), torch.device("cpu"))


def refuse(error: ConfigError, caller: Caller, group: dist.ProcessGroup | None, model: object) -> NoReturn:
    """Raise this rank's error about its arguments, on the other ranks too, which wait in ``prepare``."""

    def select() -> dict[str, nn.Parameter]:
        raise error

    if dist.is_initialized():
        prepare_named(select, device_of(model), "none", {}, group, caller)
    raise error


def agree_along(
    channels: Iterable[Channel], what: str, describe: Callable[[], str], device: torch.device, failure: Exception | None
) -> None:
    """Compare over one channel after the other; an error of this rank, or over one of them, is raised on all.

    Args:
        channels: channels over ranks that did not compare with each other yet, in the same order on all ranks.
        what: name of what is compared, for errors.
        failure: error that this rank has already; None: there is none.

    Raises:
        Exception: ``failure``, or else the first error of a comparison.
    """

    def described() -> str:
        if failure is not None:
            raise failure
        return describe()

    for channel in channels:
        try:
            agree(channel, what, described, device)
        except Exception as error:
            # The first error is kept, and the others are compared in any case: their ranks wait for this one.
            failure = failure or error
    if failure is not None:
        raise failure


def check_initialised() -> None:
    """Refuse to begin without a default process group."""
    if not dist.is_initialized():
        raise ConfigError(
            "torch.distributed must be initialised: start the script with torchrun and call "
            "torch.distributed.init_process_group() first"
        )


def kind_of(value: object) -> str:
    """Describe a given object for an error message."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def uncompiled(model: Any) -> Any:
    """Unwrap an object from ``torch.compile``; any other is returned unchanged."""
    return getattr(model, "_orig_mod", model)


def frozen_in(module: nn.Module) -> dict[str, int]:
    """The numbers of elements of parameters that are not trained, by name."""
    return {name: param.numel() for name, param in module.named_parameters() if not param.requires_grad}


def prepare_named(
    select: Callable[[], dict[str, nn.Parameter]],
    device: torch.device,
    compressor: Any,
    options: Mapping[str, Any],
    group: dist.ProcessGroup | None,
    caller: Caller,
    carrier: object | None = None,
    embeddings: Callable[[], Iterable[str]] | None = None,
    sparse: Container[int] = (),
    left: Sequence[str] = (),
    **facts: Any,
) -> Prepared:
    """Prepare as ``prepare`` does the parameters that ``select`` names; an error on one rank is raised on all.

    Args:
        sparse: ids of the parameters that get sparse gradients.
        left: names of parameters that somebody else sees to; patterns of ``exclude`` may match them.
    """
    if not dist.is_initialized():
        select()
        check_initialised()
    settings, rest = Settings.split(options)
    # Before anything is checked, because only over a group the others can be given an error of this rank.
    lent = private_group(group, settings.timeout, device)
    private = lent.group
    ranks: Ranks = frozenset(dist.get_process_group_ranks(private))
    prepared: list[Prepared] = []

    def describe() -> str:
        params = select()
        refuse_owned(caller, params, ranks, carrier)
        kinds = kinds_of(params, sparse)
        tables = [name for name, kind in kinds.items() if kind == "sparse"]
        allowed = (
            "dense on NCCL, which adds up no sparse ones: make its embedding with sparse=False, or the group of Gloo"
        )
        require(not tables or backend_of(private, device) != "nccl", "gradients", allowed, tables)
        shapes = shapes_of({name: param for name, param in params.items() if name not in kinds})
        exchange = steered(settings, compressor, rest, private, device, shapes, embeddings)
        exchange.methods.policy.check(exchange.methods.compressor, list(params), exchange.channel.world, left)
        prepared.append(Prepared(exchange, params, kinds))
        controller = {} if exchange.controller is None else {"auto": exchange.controller.to_config()}
        return exchange.describe(shapes_of(params), **facts, **controller, uncompressed=kinds)

    try:
        # A channel of its own, because the exchange is made inside ``describe``, and may fail there.
        agree(Channel(private, Metrics()), "set-up", describe, device)
        # All ranks are past the comparison, so all of them take part.
        prepared[0].exchange.methods.meet(prepared[0].exchange.channel, device)
    except BaseException:
        # All ranks have the same error, so the group is free on all of them for the next set-up.
        lent.give_back()
        raise
    lent.hold(prepared[0].exchange.channel)
    prepared[0].exchange.channel.call_limit = call_limit(group, settings.timeout, device)
    # Only now: a set-up that failed owns no parameters.
    own(prepared[0].exchange, caller, prepared[0].params, ranks, carrier)
    announce(prepared[0].exchange, shapes_of(prepared[0].compressed))
    if prepared[0].exchange.channel.rank == 0:
        announce_uncompressed(prepared[0].params, prepared[0].uncompressed)
    return prepared[0]


def prepare_alone(
    select: Callable[[], dict[str, nn.Parameter]],
    device: torch.device,
    compressor: Any,
    options: Mapping[str, Any],
    caller: Caller,
) -> Prepared:
    """Prepare as ``prepare_named`` does an exchange over no process group: a group of one.

    Raises:
        ConfigError: a wrong option.
    """
    settings, rest = Settings.split(options)
    params = select()
    refuse_owned(caller, params, frozenset())
    exchange = settings.exchange(compressor, rest, None, device)
    exchange.methods.policy.check(exchange.methods.compressor, list(params))
    own(exchange, caller, params, frozenset())
    announce(exchange, shapes_of(params))
    return Prepared(exchange, params, {})


@torch.no_grad()
def share_start(tensors: Iterable[Tensor], group: dist.ProcessGroup | None, device: torch.device | None = None) -> None:
    """Broadcast rank 0's values to all ranks, as under DDP; they travel as bytes, because Gloo knows few dtypes.

    Args:
        device: device that the group's backend serves; None: that of the tensors.
    """
    source = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)[0]
    for tensor in tensors:
        # A tensor of one element is contiguous whatever its strides, and bytes need them to be 1.
        sent = tensor.detach().to(device).clone(memory_format=torch.contiguous_format)
        dist.broadcast(sent.view(-1).view(torch.uint8), source, group=group)
        tensor.copy_(sent)


def shapes_of(params: Mapping[str, torch.Tensor]) -> list[Named]:
    """Map the parameters' names to their shapes in this process's memory."""
    return [(name, tuple(in_memory(param).shape)) for name, param in params.items()]


def in_memory(param: torch.Tensor) -> torch.Tensor:
    """View the parameter with its dimensions in the order in which they lie in memory.

    DDP lays a gradient into its bucket as the parameter lies in memory: a channels-last weight is not a matrix of
    shape[0] rows there unless its dimensions are named in that order.
    """
    if param.is_contiguous():
        return param
    permuted = param.permute(memory_order(param))
    return permuted if permuted.is_contiguous() else param


def memory_order(param: torch.Tensor) -> list[int]:
    """Order the dimensions from the slowest to the fastest."""
    return sorted(range(param.dim()), key=lambda dim: (-param.stride()[dim], dim))


def backends_of(group: dist.ProcessGroup | None) -> dict[str, str]:
    """The backend of the group for each kind of device; empty for a group of which torch knows none."""
    try:
        config = dist.get_backend_config(group)
    except TypeError:
        return {}
    pairs = (pair.partition(":") for pair in config.split(","))
    return {kind: name for kind, _, name in pairs}


def backend_of(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """The name of the backend that serves tensors on a device in this group."""
    return backends_of(group).get(device.type) or dist.get_backend(group)


_USUAL = {"cpu": "gloo", "cuda": "nccl"}


def call_limit(group: dist.ProcessGroup | None, timeout: object, device: torch.device) -> float | None:
    """The seconds that a call which all ranks must make may take; None: as many as a collective of the group.

    Whoever has given a timeout, here or to the group, has said how long ranks may be apart.
    """
    usual = default_pg_timeout.total_seconds()
    return CALL_LIMIT if timeout is None and timeout_of(group, device) in (None, usual) else None


def ranks_in(group: dist.ProcessGroup | None) -> list[int]:
    """List the ranks of a group; None: those of the default group.

    Raises:
        ConfigError: the group is none of torch.distributed.
    """
    known = group is None or isinstance(group, dist.ProcessGroup)
    require(known, "process_group", "None or a group of torch.distributed that this rank is in", group)
    return dist.get_process_group_ranks(group)


def private_group(group: dist.ProcessGroup | None, timeout: object, device: torch.device) -> Lease:
    """Make a process group over the same ranks, on which nobody else issues collectives.

    Gloo and NCCL serve it where the given group has them for the gradients' device; other backends may lack what an
    exchange needs, and the usual one of the device takes their place. A timeout that is not valid is refused later,
    when all ranks can raise the error.
    """
    members = sorted(ranks_in(group))
    if dist.get_rank() not in members:
        raise ConfigError(f"this process must be a member of the group, got the group of ranks {members}")
    usual = _USUAL.get(device.type) or dist.get_backend(group)
    own = backends_of(group).get(device.type, usual)
    backend = own if own in _USUAL.values() else usual
    given = cast("float | None", timeout) if valid_timeout(timeout) else None
    seconds = float(given or timeout_of(group, device) or default_pg_timeout.total_seconds())
    with roll_call("set-up", "-".join(map(str, members)), members) as missing:
        try:
            limit = call_limit(group, given, device)
            return lease(members, backend, seconds, partial(new_group, members, backend, seconds), limit)
        except GroupError as error:
            # Asked only now, when the store knows who has not come in all this time.
            absent = named(missing())
            raise GroupError(f"{absent} did not set up gradwire: {error}" if absent else str(error)) from None


def private_channel(
    group: dist.ProcessGroup | None, timeout: object, device: torch.device, metrics: Metrics | None = None
) -> Channel:
    """Make a channel on a ``private_group``, which is free for others when the channel is closed."""
    lent = private_group(group, timeout, device)
    channel = Channel(lent.group, metrics or Metrics())
    lent.hold(channel)
    return channel


def new_group(members: list[int], backend: str, seconds: float, name: str) -> dist.ProcessGroup:
    """Make a process group over these ranks, which all of them know by this name.

    torch's ``new_group`` takes the name of a group from how many there are. What only some ranks make would change the
    names of the user's own groups on these alone, and everybody would wait for everybody at the next one.
    """
    c10d, limit = cast(Any, dist.distributed_c10d), timedelta(seconds=seconds)
    place = members.index(dist.get_rank()), members, dist.Backend(backend), c10d._get_default_store(), name
    bound = getattr(dist.group.WORLD, "bound_device_id", None)
    try:
        made, _ = c10d._new_process_group_helper(len(members), *place, timeout=limit, device_id=bound)
    except (RuntimeError, ValueError) as error:
        raise GroupError(
            f"ranks {members} did not all set up gradwire within {seconds:g} s: every rank must make the call ({error})"
        ) from None
    # As torch's new_group does: get_process_group_ranks reads it.
    c10d._world.pg_group_ranks[made] = {rank: number for number, rank in enumerate(members)}
    return cast(dist.ProcessGroup, made)


MUCH = 0.2
"""The share of all elements from which on a warning says that a method cannot shrink them."""


def steered(
    settings: Settings,
    compressor: Any,
    rest: Mapping[str, Any],
    group: dist.ProcessGroup | None,
    device: torch.device,
    shapes: list[Named],
    embeddings: Callable[[], Iterable[str]] | None,
) -> Exchange:
    """Make the exchange of these settings; that of "auto" is uncompressed until its controller decides.

    Raises:
        ConfigError: a wrong option, or one that "auto" decides itself.
    """
    if not is_auto(compressor):
        for name in ("budget", "decisions"):
            given = getattr(settings, name)
            require(given is None, name, f"None with any compressor but {AUTO!r}", given)
        return settings.exchange(compressor, rest, group, device)
    if embeddings is None:
        raise ConfigError(
            f"compressor must be a method here, got {AUTO!r}: compress_ddp, compress_optimizer, compress_fsdp, "
            "compress_fsdp1 and CompressedStep take it"
        )
    given = {name: value for name, value in registry.named_of(compressor).items() if name != "name"}
    unknown = [name for name in (*given, *rest) if name != "budget"]
    if unknown:
        raise ConfigError(f"{AUTO!r} has no parameter {unknown[0]!r}: {nearest(unknown[0], ['budget', 'decisions'])}")
    for name in ("memory", "strategy", "schedule"):
        value = getattr(settings, name)
        require(not value, name, f"left out with {AUTO!r}, which decides it", value)
    twice = "budget" in given and settings.budget not in (None, given["budget"])
    require(not twice, "budget", f"left out beside {compressor!r}", settings.budget)
    exchange = settings.exchange(Identity(), {}, group, device)
    for name, each in exchange.methods.policy.overrides.items():
        fits = each is None or capabilities.identity(each) or right_on_average(each)
        require(fits, f"overrides[{name!r}]", f"a method that is right on average, as qsgd, with {AUTO!r}", each)
    budget = given.get("budget", "safe" if settings.budget is None else settings.budget)
    AutoController(exchange, shapes, budget, embeddings(), settings.decisions)
    return exchange


def embeddings_of(model: nn.Module) -> list[str]:
    """The names of the parameters of embeddings."""
    return [
        f"{name}.{own}".removeprefix(".")
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for own, _ in module.named_parameters(recurse=False)
    ]


def announce(exchange: Exchange, shapes: list[Named]) -> None:
    """Announce once, on rank 0, what is compressed; warn if nothing is."""
    if exchange.channel.rank != 0:
        return
    # Workers of a meeting have no group.
    alone = exchange.channel.world == 1 and exchange.channel.group is not None
    if alone and (exchange.controller is not None or capabilities.identity(exchange.methods.compressor)):
        tell("the group has one rank: training goes on as without gradwire", quiet=exchange.quiet)
        return
    if alone:
        tell("the group has one rank: nothing travels, and gradients pass through the method", quiet=exchange.quiet)
    if exchange.controller is not None:
        tell("%s", exchange.controller.announcement(), quiet=exchange.quiet)
        return
    main, total, compressed, dense = exchange.methods.compressor, 0, 0, dict[str, int]()
    for name, shape in shapes:
        numel = torch.Size(shape).numel()
        total += numel
        chosen = exchange.methods.policy.choose(name, shape, main)
        compressed += numel if chosen is not None and not capabilities.identity(chosen) else 0
        if exchange.methods.policy.would_grow(name, shape, main):
            dense[name] = numel
    log.info(
        "%r over %s: %d of %d elements compressed, the rest travels dense",
        main,
        exchange.methods.strategy_for(main).name,
        compressed,
        total,
    )
    if compressed == 0 and not capabilities.identity(main):
        log.warning(
            "%r compresses nothing: every parameter is excluded, smaller than min_numel=%d, or would grow",
            main,
            exchange.methods.policy.min_numel,
        )
    if sum(dense.values()) > MUCH * total and not capabilities.identity(main):
        by_size = sorted(dense, key=lambda each: -dense[each])
        more = f" and {len(by_size) - 3} more" if len(by_size) > 3 else ""
        remedy = ", or reshape them into matrices" if main.family == "low rank" else ""
        log.warning(
            "%r cannot shrink %s%s: %d of %d elements travel dense; give them another method, such as "
            "overrides={%r: 'qsgd'}%s",
            main,
            ", ".join(by_size[:3]),
            more,
            sum(dense.values()),
            total,
            by_size[0],
            remedy,
        )
