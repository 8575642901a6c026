"""Base of the optimizers: names for their parameters, an exchange of their own, a checkpoint of both.

Invariants:
    * All ranks call ``step`` equally often, each with its own gradients, and hold the same parameters whenever the
      optimizer says that they are in step.
    * A ``GradScaler`` does not skip the call but passes its scale. A rank whose gradient overflowed still takes part,
      so that the others do not wait for it.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from gradwire.engine.checkpoint import OnResize
from gradwire.engine.plan import Named
from gradwire.engine.settings import Settings, refuse_unknown
from gradwire.errors import ConfigError, Verbatim, is_int, require
from gradwire.frontends.ownership import Caller, Ranks, classes_of, conflict_with_ddp
from gradwire.frontends.setup import (
    check_dtypes,
    is_auto,
    prepare_alone,
    prepare_named,
    share_start,
    warn_of_statistics,
)
from gradwire.frontends.summary import Summarised
from gradwire.notices import log
from gradwire.optim._flat import any_nonfinite

__all__ = ["COUNT", "FLAG", "Closure", "Exchanged", "named"]


Closure = Callable[[], Any]

Range: TypeAlias = tuple[Callable[[Any], bool], str]
"""A test of whether a value may be a parameter, and the allowed values in words."""

COUNT: Range = (lambda value: is_int(value, 1), "an integer >= 1")
FLAG: Range = (lambda value: isinstance(value, bool), "True or False")


class Exchanged(Summarised, Optimizer):
    """An optimizer that holds an ``Exchange`` over its parameters.

    Args:
        params: parameters, (name, parameter) pairs, or groups of either. Patterns in ``exclude`` and ``overrides`` are
            over these names; parameters without names are called ``group.index``.
        defaults: defaults of the parameter groups.
        compressor: a registered name, a compressor, or a recipe of ``from_params``.
        options: further arguments, as for ``compress_ddp``.
        group: the ranks; None is the default group.
        facts: other values that must be the same on all ranks.
        check: function that checks what else may be wrong with this rank's arguments; if it raises, all ranks raise.
        float32: no other parameters are taken.
        alone: true where workers have no process group; they meet in another way.
    """

    # Tells a GradScaler to call step() in any case; the exchange finds an overflow itself, on all ranks alike.
    _step_supports_amp_scaling = True

    ranges: ClassVar[Mapping[str, Range]] = {}
    """The parameters of its own, each with what it may be."""

    sharded: ClassVar[str] = ""
    """Further advice for a sharded model, as for ``Caller``."""

    steered: ClassVar[bool] = False
    """True: "auto" may be given in place of a compressor."""

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        compressor: Any,
        options: Mapping[str, Any],
        group: dist.ProcessGroup | None,
        facts: Mapping[str, Any],
        check: Callable[[], None],
        *,
        float32: bool = False,
        alone: bool = False,
    ) -> None:
        super().__init__(params, defaults)

        def select() -> dict[str, nn.Parameter]:
            check()
            if isinstance(compressor, str) and not is_auto(compressor):
                own = inspect.signature(type(self)).parameters.values()
                others = [each.name for each in own if each.kind is not each.VAR_KEYWORD]
                refuse_unknown(compressor, Settings.split(options)[1], others)
            found = self.on_rank(named(self.param_groups))
            check_dtypes(found)
            for name, param in found.items():
                require(not float32 or param.dtype == torch.float32, f"dtype of {name}", "float32", param.dtype)
            return found

        # Without any parameter ``select`` says so.
        device = next((param.device for _, param in pairs_of(self.param_groups)), torch.device("cpu"))
        self.frozen = {name: param for name, param in pairs_of(self.param_groups) if not param.requires_grad}
        facts = {"optimizer": type(self).__name__, **facts}
        if self.frozen:
            # They are sent, so all must have the same.
            facts["frozen"] = [[name, list(each.shape), str(each.dtype)] for name, each in self.frozen.items()]
        freed = "go on with that optimizer, or delete it first"
        self._caller = caller = Caller(type(self).__name__, freed=freed, sharded=self.sharded)
        self._unchecked = True
        if not alone:
            # Of parameters alone nobody knows which belong to embeddings.
            embeddings = tuple[str, ...] if self.steered else None
            self.exchange, by_name, _ = prepare_named(
                select, device, compressor, options, group, caller, embeddings=embeddings, **facts
            )
        else:
            self.exchange, by_name, _ = prepare_alone(select, device, compressor, options, caller)
        self.params: list[nn.Parameter] = list(by_name.values())
        self.named: list[Named] = [(name, tuple(param.shape)) for name, param in by_name.items()]
        self.facts = facts
        if self.exchange.channel.rank == 0 and (alone or self.exchange.channel.world > 1):
            warn_of_statistics(type(self).__name__, modules_of(named(self.param_groups).values()))
        # All parameters travel in one bucket, and what is not finite drops the whole step: what an override or a
        # decision sent with another strategy has a message of its own, and must be undone with the others.
        several = bool(self.exchange.methods.policy.overrides) or self.exchange.controller is not None
        self.exchange.rollback.follow_skips(several)
        self._ranks: Ranks = frozenset()
        if not alone:
            self._ranks = frozenset(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
            share_start([*self.params, *self.on_rank(self.frozen).values()], group, self.exchange.device)

    def on_rank(self, params: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """The tensors that this rank exchanges of these parameters: here the parameters themselves."""
        return params

    @classmethod
    def check_parameters(cls, given: Mapping[str, object]) -> None:
        """Refuse parameters outside their range; it needs no group, so it can be asked before there are ranks.

        Args:
            given: parameters by name; those that are left out are not looked at, nor those of the compressor.

        Raises:
            ConfigError: a parameter is out of range; the message names it, its value and what is allowed.
        """
        for name, (fits, allowed) in cls.ranges.items():
            if name in given:
                require(fits(given[name]), f"{cls.__name__}.{name}", allowed, given[name])

    def exchanged(
        self, flat: Tensor, params: Sequence[Named] | None = None, everywhere: Callable[[bool], bool] = bool
    ) -> bool:
        """Replace ``flat`` by its mean over the ranks; return whether that is finite. If not, all kept tensors are as
        before.

        Args:
            flat: contiguous float32, the parameters in order; the same answer on every rank.
            params: names and shapes of these parameters; None: all.
            everywhere: tells whether means that must be applied together with this one are finite, too; whole steps
                must be undone then (``Rollback.follow_skips``).
        """
        self.exchange.run(flat, self.named if params is None else params)
        # Before the step ends, because what another shard spoils must be undone here as well.
        finite = everywhere(not any_nonfinite([flat]))
        if not finite:
            # The flags of the messages say nothing of a mean that overflowed where it was made.
            self.exchange.rollback.note([torch.ones((), dtype=torch.bool, device=flat.device)])
        # Ended at once and not with the next step: the caller applies the mean, or leaves it, by this answer.
        self.exchange.end_step()
        return finite

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse a new group after construction, because ranks compare their parameters once.

        Raises:
            ConfigError: the optimizer was made already.
        """
        require(
            not hasattr(self, "exchange"),
            "param_groups",
            "complete when the optimizer is made",
            Verbatim("another group"),
        )
        super().add_param_group(param_group)

    def check_model(self) -> None:
        """Refuse a model in which something was unfrozen since the optimizer was made; in the first step of all one
        that was wrapped since.

        Raises:
            ConfigError: a parameter was unfrozen, or a DDP model averages the gradients.
        """
        thawed = [name for name, param in self.frozen.items() if param.requires_grad]
        allowed = "those that were trained when the optimizer was made: make it again after a change of requires_grad"
        require(not thawed, "trained parameters", allowed, thawed)
        if self._unchecked:
            by_name = {name: param for (name, _), param in zip(self.named, self.params, strict=True)}
            found = conflict_with_ddp(self._caller, by_name, self._ranks)
            if found is not None:
                raise ConfigError(found)
            self._unchecked = False

    def load_exchange(self, state: Mapping[str, Any], on_resize: OnResize, *, apart: bool) -> None:
        """Load the exchange of a state; an error on one rank is raised on all.

        Args:
            apart: ranks have parameters of their own in this state, so no rank can go on from another's.
        """

        def fit(exchange: Mapping[str, Any]) -> Mapping[str, Any]:
            self.check_state(state)
            channel = self.exchange.channel
            alike = exchange["world"] == channel.world
            borrowed = str(channel.rank) not in exchange["ranks"] if alike else on_resize == "error"
            require(
                not (apart and borrowed),
                "state_dict",
                f"what rank {channel.rank} saved itself, because ranks have weights of their own in it: save on every "
                "rank, or when all are in step (docs/checkpoints.md)",
                Verbatim("that of another rank"),
            )
            return exchange

        self.exchange.load_state_dict(state["exchange"], on_resize=on_resize, fit=fit)

    def check_state(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse what else of a state cannot be gone on with here, before any rank has taken it over."""

    def own_parameters(self, *, apart: bool) -> dict[str, Any]:
        """Return the entry of a state for the parameters of this rank, or no entry unless they differ from the others'.

        Whoever makes the optimizer takes over those of rank 0, so a state in which ranks are apart must have its own.
        """
        own = {name: param.detach() for (name, _), param in zip(self.named, self.params, strict=True)}
        return {"own": own} if apart else {}

    @torch.no_grad()
    def put_back(self, state: Mapping[str, Any], *, apart: bool) -> None:
        """Write the parameters of a state in which ranks are apart into those of this rank.

        Args:
            state: state with the entry of ``own_parameters``; one of an earlier version has none.
            apart: ranks are apart in this state.
        """
        if apart and "own" in state:
            for (name, _), param in zip(self.named, self.params, strict=True):
                param.copy_(state["own"][name])
        elif apart and self.exchange.channel.world > 1 and self.exchange.channel.rank == 0:
            log.warning(
                "the state of %s is of an earlier version and was saved within a round, without the parameters of its "
                "rank: load the model's weights after the optimizer was made, or all ranks have those of rank 0",
                type(self).__name__,
            )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        # torch would copy the groups and the state alone, and the copy would have no exchange.
        raise ConfigError(
            f"{type(self).__name__} cannot be copied or pickled: save state_dict(), and load it into one that is made "
            "anew; a model can be copied, without its optimizer"
        )

    def loss_scale(self) -> Tensor | None:
        """The factor of the gradients, if a ``GradScaler`` is at work that has not yet unscaled them."""
        return cast("Tensor | None", getattr(self, "grad_scale", None))


def named(groups: list[dict[str, Any]]) -> dict[str, nn.Parameter]:
    """The trainable parameters of the groups, in order, by name.

    Raises:
        ConfigError: none is trainable, or two have one name.
    """
    pairs = [(name, param) for name, param in pairs_of(groups) if param.requires_grad]
    require(bool(pairs), "params", "at least one trainable parameter", Verbatim("none"))
    found = dict(pairs)
    require(len(found) == len(pairs), "params", "parameters of different names", [name for name, _ in pairs])
    return found


def pairs_of(groups: list[dict[str, Any]]) -> Iterator[tuple[str, nn.Parameter]]:
    """All parameters of the groups, in order, each with its name."""
    for index, group in enumerate(groups):
        names = group.get("param_names") or [f"{index}.{place}" for place in range(len(group["params"]))]
        yield from zip(names, group["params"], strict=True)


def modules_of(params: Iterable[Tensor]) -> Iterator[nn.Module]:
    """The modules with running statistics that hold any of these parameters, which do not know their modules."""
    ids = {id(param) for param in params}
    for each in gc.get_referrers(*classes_of(_NormBase)):
        if issubclass(type(each), _NormBase) and any(id(param) in ids for param in each.parameters(recurse=False)):
            yield each
