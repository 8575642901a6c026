"""Local steps: every rank trains alone for some steps, then all agree on the parameters to continue from.

Invariants:
    * ``agreed`` holds the parameters on which all ranks last agreed, in float32 and with the same bits everywhere.
    * The ranks exchange the pseudo-gradient, agreed - p, which points like a gradient. Parameters themselves are never
      compressed.
    * After each exchange every rank continues from the new ``agreed``, with an inner optimizer of its own.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Literal, cast, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.engine.checkpoint import OnResize
from gradwire.errors import ConfigError, Verbatim, is_number, require
from gradwire.frontends.ownership import on_rank
from gradwire.frontends.summary import in_words
from gradwire.optim._flat import FlatParameters, any_nonfinite
from gradwire.optim.exchanged import COUNT, FLAG, Closure, Exchanged, named
from gradwire.optim.local._crew import ALONE
from gradwire.optim.local._islands import MAIN, Island
from gradwire.optim.local._rounds import Rounds
from gradwire.optim.local.meeting import Meeting

__all__ = ["LocalSteps", "Weigh"]

Weigh = Literal["workers", "steps", "tokens"]

WEIGHS = get_args(Weigh)


class LocalSteps(Exchanged):
    """Base of an optimizer that wraps an inner one and shares its parameter groups, so a scheduler may be given either
    of the two.

    Args:
        inner, every, meeting, islands, offload, weigh: arguments of ``DiLoCo``.
        compressor, options, group, facts, check: arguments of ``Exchanged``.
        threads: number of threads that exchange beside each other inside an island.
    """

    ranges: ClassVar = {"every": COUNT, "offload": FLAG, "weigh": (WEIGHS.__contains__, f"one of {', '.join(WEIGHS)}")}

    sharded: ClassVar = (
        "; or, for local steps, give DiLoCo or local SGD islands=, the mesh of the ranks that hold the same shard of "
        "fully_shard in the other islands"
    )

    def __init__(
        self,
        inner: Optimizer,
        compressor: Any,
        every: int,
        options: Mapping[str, Any],
        group: dist.ProcessGroup | None,
        meeting: Meeting | None,
        facts: Mapping[str, Any],
        check: Callable[[], None] = lambda: None,
        islands: Any = None,
        offload: bool = False,
        threads: int = 1,
        weigh: Weigh = "workers",
    ) -> None:
        name = type(self).__name__
        require(isinstance(inner, Optimizer), f"{name}.inner", "a torch.optim.Optimizer", inner)
        closure = inspect.signature(inner.step).parameters.get("closure")
        alone = closure is None or closure.default is not closure.empty
        require(alone, f"{name}.inner", "one whose step needs no closure", Verbatim(type(inner).__name__))
        require(isinstance(meeting, Meeting | None), f"{name}.meeting", "a gradwire.Meeting or None", meeting)
        require(meeting is None or group is None, "process_group", "None with a meeting", group)
        require(islands is None or group is None, "islands", "None with a process_group", Verbatim("both"))
        allowed = "None with a meeting, where a model of fully_shard is an island by itself"
        require(islands is None or meeting is None, "islands", allowed, Verbatim("both"))
        cut = any(hasattr(param, "device_mesh") for each in inner.param_groups for param in each["params"])
        at_meeting = meeting.island() if meeting is not None and cut else None
        self.island = at_meeting if islands is None else Island(islands)

        def check_all() -> None:
            # First, because the island hears of other errors through its mesh.
            if self.island is not None:
                self.island.check({**named(self.param_groups), **self.frozen})
            self.check_parameters({**facts, "offload": offload, "weigh": weigh})
            require(meeting is not None or weigh == "workers", f"{name}.weigh", "'workers' without a meeting", weigh)
            check()

        facts = {"every": every, **facts}
        if offload:
            # A GPU rounds other than its host, and all must have the same bits.
            facts["offload"] = offload
        if weigh != "workers":
            facts["weigh"] = weigh
        if self.island is not None:
            group, facts["islands"] = self.island.group, self.island.facts

        # A scheduler looks for a parameter such as momentum in the defaults.
        given = (inner.param_groups, inner.defaults, compressor, options, group, facts, check_all)
        make = partial(super().__init__, *given, alone=meeting is not None)

        if self.island is None:
            make()
        else:
            same = facts if meeting is None else {**facts, "meeting": meeting.on_all_ranks}
            wait = None if meeting is None else meeting.longest_wait
            self.island.set_up(make, lambda: self.exchange, same, options.get("timeout"), threads, wait)
            # A mean that was well here is dropped if that of another shard was not.
            self.exchange.rollback.follow_skips(True)
        self.inner, self.every, self.since, self.made = inner, every, 0, 0
        self.weigh, self._tokens, self._counted = weigh, 0.0, False
        self._shows_agreed = False
        self.trained: list[Tensor] = list(named(self.param_groups).values())
        self._arrange()
        self.agreed, self.delta = FlatParameters(self.params, offload), FlatParameters(self.params)
        self.agreed.gather(self.params)
        self.crew = ALONE if self.island is None else self.island.crew
        self.rounds = (
            None
            if meeting is None
            else Rounds(
                *(self.exchange, self.named, meeting, self.facts, list(self.frozen.values()), self.crew),
                weighs=weigh != "workers",
            )
        )

    @property
    def in_step(self) -> bool:
        """Return whether all ranks hold the same parameters now."""
        return self.since == 0

    def outer(self, mean: Tensor) -> None:
        """Move ``agreed`` by the mean change, whose tensor may be overwritten; here it is applied unchanged."""
        self.agreed.data.sub_(mean.to(self.agreed.data.device))

    @property
    def round(self) -> int:
        """The number of rounds that all have made together."""
        return self.exchange.step

    def kept(self) -> dict[str, FlatParameters]:
        """The tensors that are the same on all ranks; a checkpoint has them beside the inner optimizer's."""
        return {"agreed": self.agreed}

    @torch.no_grad()
    def join(self) -> None:
        """Join the meeting, after loading a checkpoint and before the first step; without a meeting it does nothing.

        The parameters become those on which the others have agreed. Steps of a loaded round that is over by now count
        as what was not sent yet, and a fragment that was under way is applied. If the state is from before a round in
        which this worker counted, its residual was sent and is dropped, with a warning.

        Raises:
            ConfigError: this worker is configured differently from the others.
            GroupError: the others did not come in time, or the meeting place is gone.
        """
        if self.rounds is not None:
            self.crew.compare("state_dict", self._position())
            self._locate()
            if self.since == 0:
                self._refresh()
            self._join(self.rounds)

    def _join(self, rounds: Rounds) -> None:
        self._gather_delta()
        for mean in rounds.join(self.delta.data, self.kept()):
            self._go(mean)
        if rounds.moved:
            self._meet()

    def _position(self) -> dict[str, Any]:
        """The position in the rounds, which the ranks of one worker have in common, as their files may not."""
        return {"round": self.exchange.step, "steps": self.since, "meeting": self.rounds.mark if self.rounds else ""}

    def leave(self) -> None:
        """Tell the others not to wait for this worker any more; without a meeting it does nothing."""
        if self.rounds is not None:
            self.rounds.leave()

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Make a step of the inner optimizer, and at intervals an exchange. The closure computes local gradients."""
        self._refuse_inside("step()")
        self.check_model()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        told = self.weigh != "tokens" or self._counted
        if self.weigh == "tokens" and self.island is not None:
            # One rank alone would leave the others in the next step.
            told = not self.island.largest(not told)
        require(told, "step()", "after add_tokens() with weigh='tokens'", Verbatim("a call without it"))
        self._locate()
        if self.since == 0:
            self._refresh()
        self._count(stepped=self._step_alone())
        self.since, self.made = self.since + 1, self.made + 1
        self._exchange_due()
        return loss

    def add_tokens(self, number: float) -> None:
        """Say on how many tokens, or examples, the gradient of the next step was computed; more calls add up.

        With ``weigh="tokens"`` a worker's change has at a meeting the share that its tokens have of all workers'. Where
        a worker is several ranks, each tells those of its own batches.

        Args:
            number: tokens, >= 0.

        Raises:
            ConfigError: the number is out of range, or workers are not weighed by tokens.
        """
        require(self.weigh == "tokens", "add_tokens()", "with weigh='tokens'", Verbatim(f"weigh={self.weigh!r}"))
        require(is_number(number) and 0 <= number < math.inf, "add_tokens.number", "a finite number >= 0", number)
        self._tokens, self._counted = self._tokens + float(number), True

    def _count(self, *, stepped: bool) -> None:
        """Note by how much this step's change is weighed; a step that was left out has none."""
        made, self._tokens, self._counted = self._tokens if self.weigh == "tokens" else 1.0, 0.0, False
        if self.rounds is not None and stepped:
            self.rounds.count(made)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Exchange now what was trained since the last exchange, as ``step`` does by itself at the end of a round.

        All ranks must call it after the same step; use it after the last step of a run. Where all are in step nothing
        is exchanged. To measure or save what all have in common, in between, use ``agreed_parameters``.

        Raises:
            GroupError: ranks called it after different steps, or the exchange failed.
        """
        self._refuse_inside("synchronize()")
        if self.in_step and self.rounds is None:
            # A round without a change would be a step of the outer momentum alone.
            return
        self._locate()
        self._end_round()

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        """Give the model, inside the block, the parameters on which all ranks last agreed; nothing is exchanged.

        These have the same bits on all ranks. Afterwards this rank's own are back, to the bit, and training goes on as
        if there had been no block.

        Raises:
            ConfigError: the optimizer is used inside the block.

        Example:
            >>> import torch, torch.distributed as dist, gradwire
            >>> model = torch.nn.Linear(1, 1, bias=False)
            >>> inner = torch.optim.SGD(model.named_parameters(), lr=0.25)
            >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
            >>> optimizer = gradwire.local_sgd(inner, "none", every=10)
            >>> _ = torch.nn.init.ones_(model.weight)
            >>> for _ in range(2):
            ...     model.weight.grad = torch.ones(1, 1)
            ...     optimizer.step()
            >>> with optimizer.agreed_parameters():
            ...     print(model.weight.item())
            1.0
            >>> model.weight.item()
            0.5
            >>> dist.destroy_process_group()
        """
        self._refuse_inside("agreed_parameters()")
        self._locate()
        with torch.no_grad():
            own = [param.clone() for param in self.params]
            if self.since == 0:
                # What was loaded or set by hand since is what all have.
                self._refresh()
            self.agreed.scatter(self.params)
        self._shows_agreed = True
        try:
            yield
        finally:
            self._shows_agreed = False
            with torch.no_grad():
                for param, kept in zip(self.params, own, strict=True):
                    param.copy_(kept)

    def _refuse_inside(self, call: str) -> None:
        require(not self._shows_agreed, call, "outside of agreed_parameters()", Verbatim("a call in its block"))

    def on_rank(self, params: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """The shards of the parameters that this rank holds, if it is one of an island."""
        if self.island is None:
            return params
        return {name: cast("nn.Parameter", on_rank(param)) for name, param in params.items()}

    def _locate(self) -> None:
        """Find the memory of the shards, which FSDP may have changed."""
        if self.island is not None:
            self.params = [cast("nn.Parameter", on_rank(param)) for param in self.trained]

    def _arrange(self) -> None:
        """Order ``params``, ``trained`` and ``named`` as their tensors are to be kept: here as they came."""

    def _exchange_due(self) -> None:
        """Exchange what is due after a step: here everything at the end of a round."""
        if self.since >= self.every:
            self._end_round()

    def _end_round(self) -> None:
        self._gather_delta()
        if self.rounds is not None:
            self.rounds.settled = False
        try:
            for mean in self._means():
                self._go(mean)
        except BaseException:
            # What was sent, or is late, is not gone a second time.
            if self.rounds is not None and self.rounds.settled:
                self._meet()
            raise
        self._meet()

    def _meet(self) -> None:
        self.agreed.scatter(self.params)
        self.since = 0

    def _gather_delta(self) -> None:
        for number in range(len(self.params)):
            self._delta_of(number)

    def _delta_of(self, number: int) -> Tensor:
        """Write the change of a parameter in this round into its slot of ``delta``."""
        return self.delta.views[number].copy_(self._start(number)).sub_(self.params[number])

    def _start(self, number: int) -> Tensor:
        """The value at which a parameter started this round: the rounded value for 16 bits, so that rounding is no
        change.
        """
        return self.agreed.views[number].to(self.params[number])

    def _means(self) -> Iterator[Tensor]:
        """The mean changes of the rounds that are over: of this one, and at a meeting of those that were missed."""
        self._note_nonfinite(self.delta.data)
        if self.rounds is not None:
            yield from self.rounds.means(self.delta.data, self.kept())
            return

        def exchange(everywhere: Callable[[bool], bool]) -> bool:
            self._begin_exchange()
            return self.exchanged(self.delta.data, everywhere=everywhere)

        if self._on_all_shards(exchange):
            yield self.delta.data

    def _on_all_shards(self, exchange: Callable[[Callable[[bool], bool]], bool], thread: int = MAIN) -> bool:
        """Exchange as ``Island.all_shards`` does, if this rank is one of an island; else alone."""
        return exchange(bool) if self.island is None else self.island.all_shards(exchange, thread)

    def _note_nonfinite(self, delta: Tensor, bad: bool = False) -> bool:
        """Spoil the change of this shard if that of another shard of the island is not finite; return whether it is.

        Args:
            bad: this rank has no change to send.
        """
        spoilt = self.island is not None and bool(self.island.largest(bad or any_nonfinite([delta])))
        if spoilt:
            # A shard without elements has nothing by which that could be seen.
            delta[:1] = float("nan")
        return spoilt

    def _begin_exchange(self) -> None:
        """Begin the step of the exchange in which the gathered changes of this round are sent."""
        self._compare_steps(self.since)
        self.exchange.begin_step()

    def _compare_steps(self, since: int) -> None:
        """Let the ranks compare how many steps are exchanged: a mean of 10 steps and 30 would go unnoticed."""
        if self.rounds is None:
            self.exchange.protocol.compare(local_steps=since)

    def _go(self, mean: Tensor) -> None:
        if self._is_finite(mean):
            self.outer(mean)

    def _is_finite(self, mean: Tensor) -> bool:
        """Return whether a mean may be applied: at a meeting the shards have not asked each other of theirs yet."""
        return not self.crew.anywhere(any_nonfinite([mean]))

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state and the tensors kept on this rank: each rank saves its own.

        Within a round this rank's parameters are among them, because they are those of no other rank.
        """
        self._refuse_inside("state_dict()")
        names = [name for name, _ in self.named]
        self._locate()
        kept = {key: dict(zip(names, flat.views, strict=True)) for key, flat in self.kept().items()}
        state = {**self.inner.state_dict(), "exchange": self.exchange.state_dict(), "kept": kept, "since": self.since}
        state |= {"made": self.made} | self.own_parameters(apart=self.since > 0)
        if self.island is not None:
            state["shard"] = self.island.shard
        return state if self.rounds is None else {**state, **self.rounds.state_dict(), "weigh": self.weigh}

    def metrics(self) -> dict[str, Any]:
        """Return the figures of the exchange, the "steps" of the inner optimizer, and the "rounds", in each of which
        steps were exchanged; at a meeting also those of its rounds.
        """
        told = super().metrics()
        own = {} if self.rounds is None else self.rounds.metrics()
        kept = {"kept_bytes": sum(self.kept_bytes().values())}
        return {**told, "rounds": told["steps"], **own, **kept, "steps": self.made}

    def kept_bytes(self) -> dict[str, int]:
        """Return the bytes that this rank keeps beside the model and its inner optimizer: the parameters of the last
        round, what the outer step keeps, the residual, and at a meeting the change that was too late.
        """
        late = {} if self.rounds is None else {"late": self.rounds.late.nbytes}
        residuals = self.exchange.residuals.nbytes
        return {**{key: flat.data.nbytes for key, flat in self.kept().items()}, "residual": residuals, **late}

    def __str__(self) -> str:
        place = " (host)" if self.agreed.data.device != self.delta.data.device else ""
        kept = [f"{in_words(n)} {key}{place * (key in self.kept())}" for key, n in self.kept_bytes().items() if n]
        return f"{super().__str__()}\n  kept      {', '.join(kept)}"

    def load_state_dict(self, state_dict: Mapping[str, Any], on_resize: OnResize = "error") -> None:
        """Continue bit for bit from a ``state_dict`` of this rank, whose parameters within a round it puts back.

        Args:
            on_resize: treatment of another number of ranks, as for ``Exchange.load_state_dict``; "reshard" needs an
                "exchange" that ``gradwire.merge_states`` made of all ranks'. Save in step: the rest is then the same on
                all.

        Raises:
            ConfigError: the state is of another optimizer, or of another number of ranks.
        """
        self._refuse_inside("load_state_dict()")
        if set(state_dict.get("kept", {})) != set(self.kept()):
            raise ConfigError(f"state_dict must be one of {type(self).__name__}, got {sorted(state_dict)}")
        self._locate()
        since = state_dict["since"]
        apart = since > 0 or bool(state_dict.get("apart")) or bool(state_dict.get("flight"))

        def load(everywhere: Callable[[bool], bool]) -> bool:
            self.load_exchange(state_dict, on_resize, apart=apart)
            return everywhere(True)

        # First, because an error of one rank is raised on all that exchange with it, before any of them has taken over
        # anything; the other shards of an island raise too, and have taken over their exchange alone.
        self._on_all_shards(load)
        self.inner.load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.param_groups = self.inner.param_groups
        for key, flat in self.kept().items():
            flat.gather(state_dict["kept"][key][name] for name, _ in self.named)
        self.since = since
        # An earlier version counted rounds only.
        self.made = state_dict.get("made", self.exchange.step * self.every + self.since)
        # Last, because the exchange has been accepted on all ranks by now.
        self.put_back(state_dict, apart=self.since > 0)
        if self.rounds is not None:
            # Steps are counted also where all workers count alike.
            steps = (float(self.since), 0.0) if self.weigh != "tokens" else (0.0, 0.0)
            alike = (state_dict.get("weigh") == "tokens") == (self.weigh == "tokens")
            weights = state_dict.get("weights", steps) if alike else steps
            self._tokens, self._counted = 0.0, False
            self.rounds.load(state_dict.get("late"), state_dict.get("meeting", ""), weights)

    def check_state(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse the state of another shard, of another model, or one from within a round of other ranks."""
        ours = None if self.island is None else self.island.shard
        theirs = state_dict.get("shard")
        require(theirs == ours, "state_dict", f"that of shard {ours}, None where nothing is sharded", theirs)
        saved, here = state_dict["exchange"]["world"], self.exchange.channel.world
        under_way = bool(state_dict.get("streams", {}).get("flights"))
        alike = saved == here or (state_dict["since"] == 0 and not under_way)
        allowed = f"saved after synchronize() for another number of ranks, here {here}"
        require(alike, "state_dict", allowed, Verbatim(f"one of {saved} from within a round"))
        shapes = {name: tuple(shape) for name, shape in self.named}
        for key, tensors in (*state_dict["kept"].items(), ("own", state_dict.get("own", shapes))):
            found = {name: tuple(getattr(each, "shape", each)) for name, each in tensors.items()}
            odd = sorted(f"{name} {shape}" for name, shape in found.items() ^ shapes.items())
            require(not odd, f"{key} of the state_dict", "tensors of this model's names and shapes", Verbatim(odd[:2]))
        sizes, own = ([len(each["params"]) for each in of] for of in (state_dict["param_groups"], self.param_groups))
        require(sizes == own, "param_groups of the state_dict", f"groups of {own} parameters", sizes)
        if self.rounds is not None:
            self.rounds.check_late(state_dict.get("late"))

    def _refresh(self) -> None:
        """Take over parameters that were loaded or changed by hand since the last round."""
        for agreed, whole in zip(self.agreed.views, self.params, strict=True):
            param = whole.to(agreed.device)
            torch.where(agreed.to(param.dtype) == param, agreed, param.float(), out=agreed)

    def _step_alone(self) -> bool:
        """Make the inner step, unless this rank's gradient is not finite, which the inner optimizer would never forget;
        return whether it was made.
        """
        grads = [on_rank(param.grad) for param in self.trained if param.grad is not None]
        scale = self.loss_scale()
        if scale is not None:
            # In place, as a GradScaler would do it before a step.
            torch._foreach_div_(grads, scale)
        bad = any_nonfinite(grads)
        # A step that one shard leaves out would be half a step of the model.
        if bad if self.island is None else self.island.largest(bad):
            return False
        self.inner.step()
        return True
