"""Process group that compresses large floating-point collectives, whatever code issues them.

Invariants:
    * What is compressed goes over a private group, by one thread, in the order in which it was issued. What is not
      compressed goes to the wrapped group at once.
    * Sums are made in float32 by one owner, compressed once more, and decoded by all ranks alike, so all end with the
      same bits.
    * On an accelerator everything runs on the stream of the caller, and no thread is needed.

Why:
    Nothing may overtake the second phase of a compressed collective on any rank, or different collectives would be
    mixed.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.adaptive import right_on_average
from gradwire.engine.dense import DenseSession
from gradwire.engine.part import Message, Part, Piece, Unit
from gradwire.engine.residual_store import ResidualStore
from gradwire.engine.settings import build_compressor
from gradwire.engine.strategies.allgather import AllGather
from gradwire.engine.strategies.base import Site, Strategy
from gradwire.engine.strategies.gather import GatherSession
from gradwire.engine.strategies.reduce_scatter import ScatterSession
from gradwire.engine.strategies.two_phase import TwoPhase
from gradwire.errors import ConfigError, is_int, require
from gradwire.frontends._background import Started
from gradwire.frontends.sharded import multiplier
from gradwire.frontends.state_units import Scratch
from gradwire.memory.none import NoMemory
from gradwire.modes import has_memory, ordinary, ordinary_modes
from gradwire.transport.channel import Channel
from gradwire.transport.worker import Worker
from gradwire.vocabulary import Key, tensor_id

__all__ = ["Carrier", "CompressingGroup", "codes_of", "described", "travels_as_it_is"]

PRESETS = {"bf16-fp32sum": "bf16", "fp8-two-phase": "fp8"}
"""Names of ways, each with its code: halves the bytes of float32, or quarters them; sums are float32 in both."""

SESSIONS = 32
"""Sizes of tensors whose buffers are kept, those used last."""

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Carrier:
    """The sessions of one private group, and the thread that runs them.

    Args:
        code: compressor of sums.
        gathered: compressor of what is gathered; None: nothing is compressed there.
        name: name of the group, the same on all ranks and another one for each group. Random streams depend on it: what
            one group has rounded may go through another, whose noise must not be the same.
    """

    def __init__(
        self, channel: Channel, code: Compressor, gathered: Compressor | None, device: torch.device, name: str
    ) -> None:
        self.channel, self.code, self.gathered, self.device = channel, code, gathered, device
        # Nothing is kept from one collective to the next: neither the memory nor the codes have tensors.
        self.site = Site(channel, device, ResidualStore(channel.world, device, 0))
        self.scratch, self.worker = Scratch(), Worker()
        self.strategy: Strategy = AllGather() if channel.world == 2 else TwoPhase()
        self.step, self.seed = 0, tensor_id(name)
        self.nothing = DenseSession([], channel, device)
        self._sessions: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._last: torch.cuda.Event | None = None

    def start(self, device: torch.device, job: Callable[[], list[Tensor]]) -> dist.Work:
        """Run a collective of tensors on this device after all that were started before."""
        done: Any
        if device.type == "cpu":
            done = self.worker.submit(cast(Any, job))
        else:
            done = Future(devices=[device])
            # The caller's current device may be another one.
            with torch.cuda.device(device):
                stream = torch.cuda.current_stream(device)
                # FSDP gathers and reduces on streams of its own, and all collectives of a group share their buffers.
                if self._last is not None:
                    stream.wait_event(self._last)
                done.set_result(job())
                self._last = stream.record_event()
        return Started(self.worker, done, device)

    @ordinary_modes()
    def all_reduce(self, tensor: Tensor, op: Any) -> list[Tensor]:
        """Replace ``tensor`` by its reduction over the ranks."""
        world, n, own = self.channel.world, tensor.numel(), ordinary(tensor).view(-1)
        flat = self.scratch.float32(own)
        session = self._session("sum", n, lambda: self.strategy.plan([self._unit(n)], self.site))
        self.channel.metrics.dense_bytes += 2 * (world - 1) * tensor.nbytes // world
        session.share, power = split(multiplier(op, world), world)
        session.run(flat, self._key(), self.nothing)
        # After decoding, and by a power of two, which changes no digit.
        if power != 1:
            flat.mul_(power)
        if flat.dtype != own.dtype:
            own.copy_(flat)
        return [tensor]

    @ordinary_modes()
    def reduce_scatter(self, output: Tensor, given: Tensor, op: Any) -> list[Tensor]:
        """Make ``output`` the reduction of this rank's part of ``given``, which stays as it is."""
        world, n = self.channel.world, output.numel()
        session: ScatterSession = self._session("scatter", n, lambda: ScatterSession(self._owners(n), self.site))
        self.channel.metrics.dense_bytes += (world - 1) * given.nbytes // world
        own = ordinary(output).view(-1)
        out = own if own.dtype == torch.float32 else torch.empty_like(own, dtype=torch.float32)
        session.run(self.scratch.float32(ordinary(given).view(-1)), out, self._key(), multiplier(op, world))
        if out is not own:
            own.copy_(out)
        return [output]

    @ordinary_modes()
    def all_gather(self, output: Tensor, given: Tensor) -> list[Tensor]:
        """Put what all ranks give into ``output``; what this rank gave itself is decoded like the rest."""
        world, n = self.channel.world, given.numel()
        session: GatherSession = self._session("gather", n, lambda: self._gathering(n))
        self.channel.metrics.dense_bytes += (world - 1) * given.nbytes
        session.send(self.scratch.float32(ordinary(given).view(-1)), self._key())
        session.receive(ordinary(output).view(world, -1).unbind(), self.scratch.float32)
        return [output]

    def _session(self, kind: str, n: int, make: Callable[[], Any]) -> Any:
        session = self._sessions.pop((kind, n), None) or make()
        self._sessions[kind, n] = session
        if len(self._sessions) > SESSIONS:
            # Each holds buffers, and sizes that do not come any more must not keep theirs.
            self._sessions.popitem(last=False)
        return session

    def _unit(self, n: int, name: str = "", code: Compressor | None = None) -> Unit:
        return Unit(((name, n),), (n,), 0, code or self.code, NoMemory())

    def _owners(self, n: int) -> list[list[Piece]]:
        units = [self._unit(n, f"#{owner}") for owner in range(self.channel.world)]
        return [[Piece(unit, unit.memory, (n,), owner * n)] for owner, unit in enumerate(units)]

    def _gathering(self, n: int) -> GatherSession:
        unit = self._unit(n, "", self.gathered)
        part = Part([Piece(unit, unit.memory, (n,), 0)])
        return GatherSession(part, self.channel, Message(part.packing, self.device, rows=self.channel.world).buffer)

    def _key(self) -> Key:
        self.step += 1
        self.channel.doing = f"collective {self.step}"
        return Key(seed=self.seed, step=self.step, rank=self.channel.rank)


class CompressingGroup(dist.ProcessGroup):
    """A process group over the ranks of another one. Made by ``wrap_group``.

    What it does not compress goes to the wrapped group. All of it is named here (``PASSED``): torch calls what a Python
    group does not name with the interpreter's lock held, and a thread of Gloo that lets go of a tensor then waits for
    that lock, while it holds the one for which the caller waits.
    """

    def __init__(
        self, inner: dist.ProcessGroup, carrier: Carrier, min_numel: int, same: torch.dtype | None, *, gloo: bool
    ) -> None:
        cast(Any, super()).__init__(inner.rank(), inner.size())
        self._inner, self._carrier, self._least, self._same = inner, carrier, min_numel, same
        self._device, self._gathers = carrier.device.type, carrier.gathered is not None
        self._gloo, self._alone = gloo, inner.size() == 1
        self._closed, self.own_name = False, ""

    @property
    def group_name(self) -> Any:
        """The name under which torch knows the group; the backends keep that of the wrapped group."""
        return self.own_name

    @property
    def group_desc(self) -> str:
        """The kind of group."""
        return "gradwire"

    def getGroupName(self) -> str:  # noqa: N802
        """Return the name, under the name of the method in C++."""
        return self.own_name

    def metrics(self) -> dict[str, Any]:
        """Return figures of compressed collectives: bytes sent and received, uncompressed bytes,
        and seconds by phase.
        """
        return {"collectives": self._carrier.step, **self._carrier.channel.metrics.as_dict()}

    def close(self) -> None:
        """Stop compressing; everything goes to the wrapped group. All ranks must call it."""
        if not self._closed:
            # First, so that nothing more is given to the thread that ends.
            self._closed = True
            # The thread first: it uses the channel, which another exchange may get afterwards.
            self._carrier.worker.close()
            self._carrier.channel.close()

    def allreduce(self, tensors: Any, opts: Any = None, *rest: Any) -> Any:
        """Reduce a tensor over the ranks, in place."""
        if not isinstance(opts, dist.AllreduceOptions) or len(tensors) != 1:
            return self._inner.allreduce(tensors, *([opts] if opts is not None else []), *rest)
        tensor: Tensor = tensors[0]
        op: Any = opts.reduceOp
        if self._takes(tensor) and reduces(op) and (tensor.dtype != self._same or op == dist.ReduceOp.PREMUL_SUM):
            return self._carrier.start(tensor.device, lambda: self._carrier.all_reduce(tensor, op))
        if self._gloo and op == dist.ReduceOp.PREMUL_SUM:
            # Gloo has no sum with a factor, so the tensor is multiplied before.
            with ordinary_modes():
                ordinary(tensor).mul_(multiplier(op, 1))
            opts.reduceOp = cast(Any, dist.ReduceOp.SUM)
        return self._inner.allreduce(tensors, opts)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Any:
        """Reduce each part of a tensor over the ranks; each rank gets its own."""
        if opts is None:
            return cast(Any, self._inner)._reduce_scatter_base(output, given)
        op: Any = opts.reduceOp
        fits = given.numel() == self.size() * output.numel() and given.dtype == output.dtype
        if fits and self._takes(given) and output.is_contiguous() and reduces(op):
            return self._carrier.start(given.device, lambda: self._carrier.reduce_scatter(output, given, op))
        if self._gloo and op == dist.ReduceOp.PREMUL_SUM:
            # In a copy, because the input of a reduce-scatter stays as it is.
            given, opts.reduceOp = given.detach() * multiplier(op, 1), dist.ReduceOp.SUM
        return self._inner._reduce_scatter_base(output, given, opts)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Any:
        """Gather a tensor of each rank; compressed only if a code was given for that."""
        fits = output.numel() == self.size() * given.numel() and given.dtype == output.dtype
        if not (self._gathers and fits and self._takes(given) and output.is_contiguous()):
            return self._inner._allgather_base(output, given, *([opts] if opts is not None else []))
        return self._carrier.start(given.device, lambda: self._carrier.all_gather(output, given))

    def reduce_scatter_single_coalesced(self, outputs: Any, given: Any, opts: Any = None) -> Any:
        """Do ``reduce_scatter_single`` for each of some tensors; functional collectives come here with one."""
        if len(outputs) == 1:
            return self.reduce_scatter_single(outputs[0], given[0], opts)
        return self._inner.reduce_scatter_tensor_coalesced(outputs, given, *([opts] if opts is not None else []))

    def all_gather_single_coalesced(self, outputs: Any, given: Any, opts: Any = None) -> Any:
        """Do ``all_gather_single`` for each of some tensors; functional collectives come here with one."""
        if len(outputs) == 1:
            return self.all_gather_single(outputs[0], given[0], opts)
        return self._inner.allgather_into_tensor_coalesced(outputs, given, *([opts] if opts is not None else []))

    # Under these names C++ and older callers look for them.
    _reduce_scatter_base: Any = reduce_scatter_single
    _allgather_base: Any = all_gather_single
    reduce_scatter_tensor_coalesced: Any = reduce_scatter_single_coalesced
    allgather_into_tensor_coalesced: Any = all_gather_single_coalesced

    def _takes(self, tensor: Tensor) -> bool:
        return (
            tensor.numel() >= self._least
            and tensor.dtype in FLOATS
            and tensor.device.type == self._device
            and tensor.is_contiguous()
            and not self._alone
            and not self._closed
            and has_memory(tensor)
        )


PASSED = (
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "monitored_barrier",
    "new_window",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "register_abort_hook",
    "scatter",
    "send",
    "unregister_abort_hook",
)
"""Collectives and calls that are the wrapped group's own, those of new versions of torch among them."""

REFUSED = ("reconfigure", "register_post_hook", "register_pre_hook")
"""Calls of which compressed collectives would not hear, because they go through another group."""


def _passed(name: str) -> Callable[..., Any]:
    def collective(self: CompressingGroup, *args: Any, **options: Any) -> Any:
        return getattr(self._inner, name)(*args, **options)

    collective.__name__, collective.__doc__ = name, "Do it in the wrapped group."
    return collective


def _refused(name: str) -> Callable[..., Any]:
    def call(self: CompressingGroup, *_: Any, **__: Any) -> NoReturn:  # noqa: ARG001
        raise ConfigError(
            f"{name} must be called on a group that is not compressed: what wrap_group compresses goes through another "
            "group, which would not hear of it"
        )

    call.__name__, call.__doc__ = name, "Refuse it."
    return call


for _make, _names in ((_passed, PASSED), (_refused, REFUSED)):
    for _name in _names:
        setattr(CompressingGroup, _name, _make(_name))


def split(factor: float, world: int) -> tuple[float, float]:
    """Split the factor of a sum over the ranks into one that makes of it no more than a mean, so that a code holds it,
    and a power of two, which changes no digit of what was decoded.

    >>> split(1.0, 3), split(1 / 3, 3), split(2.0, 4)
    ((0.25, 4.0), (0.3333333333333333, 1.0), (0.25, 8.0))
    """
    part, exponent = math.frexp(factor * world)
    power = math.ldexp(1.0, exponent - (abs(part) == 0.5))
    return factor / power, power


def reduces(op: Any) -> bool:
    """Return whether a reduction is a sum with a factor."""
    return any(op == each for each in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM))


def codes_of(compressor: Any, all_gather: Any, min_numel: object) -> tuple[Compressor, Compressor | None]:
    """Make the methods for sums and for what is gathered.

    Raises:
        ConfigError: the code is refused, as by ``code_of``, or ``min_numel`` is out of range.
    """
    require(is_int(min_numel, 1), "min_numel", "an integer >= 1", min_numel)
    code = code_of(compressor, "compressor")
    return code, code_of(all_gather, "all_gather") if all_gather is not None else None


def travels_as_it_is(code: Compressor, world: int) -> torch.dtype | None:
    """The dtype of tensors that two ranks add up as exactly without a method, in as many bytes; None: of none."""
    return torch.bfloat16 if capabilities.plain_dtype(code) is torch.bfloat16 and world == 2 else None


def described(code: Compressor, gathered: Compressor | None, min_numel: int, default: bool) -> str:
    """Describe the settings that must be the same on all ranks, as JSON."""
    return json.dumps(
        {
            "compressor": code.to_config(),
            "all_gather": gathered.to_config() if gathered is not None else None,
            "min_numel": min_numel,
            "default": bool(default),
        }
    )


def code_of(given: Any, name: str) -> Compressor:
    """Make the method, if it can be used without any memory."""
    code = build_compressor(PRESETS.get(given, given) if isinstance(given, str) else given, {}, name)
    TwoPhase().check(code)
    safe = right_on_average(code) and capabilities.advice(code) == 0
    stateless = safe and not code.init_state((code.alignment,), Key(), torch.device("cpu"))
    require(stateless, name, "a method that needs no memory: one that is fine or right on average", code.name)
    return code
