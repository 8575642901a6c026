"""Compressed all-gather of weights for FSDP2.

Invariants:
    * All ranks decode the same bytes, the owner of a shard its own, so all compute with the same weights. The
      optimizer's own weights are never touched.
    * A module is gathered twice in a step, for the forward and for the backward pass, and must be the same in both. So
      only methods are taken that give the same bytes for the same weights.
    * Differences are sent once, for the forward pass: every rank then has the whole module, and the backward pass reads
      that.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.auto.shared_link import Gathers, LinkUse, link_use
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.bf16 import BF16
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.wrappers.ef21 import EF21
from gradwire.engine.part import Part, Piece, Unit
from gradwire.engine.policy import Policy
from gradwire.engine.settings import build_compressor
from gradwire.engine.shards import Sharded
from gradwire.engine.strategies.gather import GatherSession
from gradwire.engine.strategies.two_phase import TwoPhase
from gradwire.errors import require
from gradwire.frontends._background import Started
from gradwire.frontends.setup import private_channel
from gradwire.frontends.state_units import Scratch
from gradwire.memory.none import NoMemory
from gradwire.metrics import Metrics
from gradwire.modes import ordinary, ordinary_modes
from gradwire.transport.worker import Worker
from gradwire.vocabulary import Key

__all__ = ["DifferenceGather", "WeightGather", "WeightSwitch", "WeightWire", "weight_code"]

MOST_PENDING = 8
"""Forward passes after which no backward pass is expected any more: they evaluate, or their module is frozen."""

SPANS = 4096
"""Times of messages that are kept for a controller, at most: those of a step."""

EXACT: dict[torch.dtype, Compressor] = {torch.float32: Identity(), torch.bfloat16: BF16(), torch.float16: FP16()}
"""Compressors that carry weights of a dtype as they are."""


def weight_code(weights: Any) -> Compressor | None:
    """The method for weights.

    Raises:
        ConfigError: one that needs a memory, draws random numbers, or has no message of fixed size.
    """
    if weights is None:
        return None
    code = build_compressor(weights, {}, "weights")
    TwoPhase().check(code)
    # Nobody sends later what a method that needs feedback has not sent; EF21 sends it with the next difference. Until
    # then all ranks compute with weights that lack it, so it must be little.
    kept = (
        isinstance(code, EF21)
        and capabilities.fine(code.inner)
        and not code.init_state((code.alignment,), Key(), torch.device("cpu"))
    )
    small = kept or (capabilities.fine(code) and code.feedback != "required")
    same = small and not code.random and capabilities.advice(code) == 0
    allowed = (
        "a method whose error is small and that is not random, such as 'blockwise8', 'fp8' or 'bf16', or "
        "'ef21:inner=loco' for differences"
    )
    require(same, "weights", allowed, code.name)
    return code


def _in_backward() -> bool:
    """Return whether this thread runs a backward pass."""
    return torch._C._current_graph_task_id() != -1


class WeightSwitch:
    """The weights of a model as ``auto`` sees and chooses them; it is a ``gradwire.auto.shared_link.WeightControl``.

    Args:
        method: method that may be chosen, as a user writes it; None: nothing is chosen.
        reductions: metrics of the reductions, which share the link.
        gathers: metrics of the gathers.

    Attributes:
        code: method that was chosen; the gathers of the next forward pass take it.
        within: true where it was chosen in a backward pass, so that others may still be to come.
        offered: method that may be chosen.
    """

    def __init__(self, method: str | None, reductions: Metrics, gathers: Metrics) -> None:
        self.method, self.code, self.within = method, cast("Compressor | None", None), False
        self.offered = weight_code(method)
        self._reductions, self._gathers, self._counted = reductions, gathers, Gathers()
        for each in (reductions, gathers):
            each.spans = deque(maxlen=SPANS)

    def use(self, method: str | None) -> None:
        """Gather the weights with the method from the next forward pass on; None: uncompressed."""
        self.code, self.within = None if method is None else self.offered, _in_backward()

    def leave(self) -> None:
        """Gather the weights uncompressed from the next forward pass on, and note no times any more."""
        self.use(None)
        for each in (self._reductions, self._gathers):
            each.spans = None

    def link_use(self) -> LinkUse:
        """Return how the link was used since the last call."""
        found = []
        for each in (self._reductions, self._gathers):
            found.append(list(each.spans or ()))
            if each.spans is not None:
                each.spans.clear()
        return link_use(*found)

    def count(self, numel: int, sent: float, plain: float, coded: float) -> None:
        """Count a gather that this rank takes part in; see ``Gathers``."""
        now = self._counted
        self._counted = Gathers(
            (), now.calls + 1, now.numel + numel, now.sent + sent, now.plain + plain, now.coded + coded
        )

    def counted(self) -> Gathers:
        """Return what was gathered since the last call."""
        now, self._counted = self._counted, Gathers()
        return now


class WeightWire:
    """The common state of a model's modules: the method, the group and the counters.

    Args:
        code: method of the weights; None: FSDP gathers them by itself.
        group: group over whose ranks the weights are sharded.
        timeout: seconds that an all-gather may take; None: as long as those of ``group``.
        metrics: counts the bytes of the all-gathers, and what they would have been.
        switch: part through which ``auto`` sees the gathers, and changes their method if it has one to offer.
    """

    def __init__(
        self,
        code: Compressor | None,
        policy: Policy,
        group: dist.ProcessGroup,
        timeout: float | None,
        device: torch.device,
        metrics: Metrics,
        switch: WeightSwitch | None = None,
    ) -> None:
        self.switch = switch
        self.code, self.policy, self.device = code, dataclasses.replace(policy, overrides={}), device
        self.channel = private_channel(group, timeout, device, metrics)
        self.scratch, self.worker = Scratch(), Worker()
        self._room = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def chosen(self) -> Compressor | None:
        """The method of a gather that begins now: the one that ``auto`` has chosen, where it may choose."""
        decides = self.switch is not None and self.switch.offered is not None
        return cast(WeightSwitch, self.switch).code if decides else self.code

    def start(self, job: Callable[[], Tensor]) -> Started | None:
        """Run a gather after all that were started before; on a CPU by a thread, so that the caller may compute.

        Returns:
            The collective to wait for; None: it is done, or in order on the caller's stream.
        """
        if self.device.type != "cpu":
            job()
            return None
        return Started(self.worker, self.worker.submit(job))

    def room(self, nbytes: int) -> Tensor:
        """The buffer for the messages of all modules, a row for each rank, as large as the largest module needs."""
        size = self.channel.world * nbytes
        if self._room.numel() < size:
            self._room = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._room[:size].view(self.channel.world, nbytes)


class WeightGather:
    """A function that FSDP calls in place of its all-gather, for one module.

    Traffic: (W-1) times the payload of a rank's shard.

    Args:
        cuts: the module's parameters, in the order of FSDP's buffer.
        group: group over which FSDP shards; a gather over another one, of weights that are decoded already, is FSDP's
            own.
        theirs: all-gather that FSDP called before.
        again: true where the backward pass gathers the weights of its forward pass again.

    Attributes:
        code: method of the gathers; None: uncompressed. It stays as it is between a forward pass and its backward pass.
    """

    def __init__(
        self, wire: WeightWire, cuts: Sequence[Sharded], group: dist.ProcessGroup, theirs: Any, *, again: bool = True
    ) -> None:
        self.wire, self.cuts, self.group, self.theirs, self._again = wire, cuts, group, theirs, again
        self._pending = 0
        """Forward passes since the last backward pass."""
        self._parts: dict[tuple[torch.dtype, Compressor], Part] = {}
        self._session: GatherSession | None = None
        self.code = wire.chosen
        # FSDP asks for the memory of its weights here, and the gather that was there before may need its own.
        self.allocate = theirs.allocate

    @torch.no_grad()
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        """Write the weights of all ranks to the output; the input, a part of it, is this rank's shard."""
        channel, numel = self.wire.channel, input_tensor.numel()
        whole = numel == sum(cut.chunk for cut in self.cuts)
        if group is not self.group or not whole or input_tensor.dtype not in EXACT or channel.world == 1:
            return self.theirs(output_tensor, input_tensor, group, async_op)
        plain = (channel.world - 1) * input_tensor.nbytes
        channel.metrics.dense_bytes += plain
        self._turn()
        self._count(input_tensor, plain)
        if self.code is None:
            channel.metrics.bytes_sent += plain
            channel.metrics.bytes_received += plain
            with channel.metrics.timed("communicate"):
                return self.theirs(output_tensor, input_tensor, group, async_op)
        gather = self._gathering()

        def job() -> Tensor:
            with ordinary_modes():
                rows = ordinary(output_tensor).view(channel.world, -1)
                gather(rows, rows[channel.rank])
            return output_tensor

        return self.wire.start(job)

    def _turn(self) -> None:
        """Take over the method that was chosen, unless a backward pass may be to come that has other weights."""
        if _in_backward():
            self._pending = 0
            return
        switch = self.wire.switch
        waits = self._again and switch is not None and switch.within and 0 < self._pending < MOST_PENDING
        if not waits:
            self.code, self._pending = self.wire.chosen, 0
        self._pending += 1

    def _count(self, own: Tensor, plain: int) -> None:
        """Tell the switch of a gather; all ranks count alike, whatever is under way."""
        wire = self.wire
        if wire.switch is None:
            return
        sent = plain if self.code is None else self._sends(own.dtype, self.code)
        offered = wire.switch.offered
        coded = sent if offered is None else (wire.channel.world - 1) * self._part(own.dtype, offered).packing.nbytes
        wire.switch.count(own.numel(), sent, plain, coded)

    def _sends(self, dtype: torch.dtype, code: Compressor) -> int:
        """The bytes that this rank sends in this gather."""
        return (self.wire.channel.world - 1) * self._part(dtype, code).packing.nbytes

    def _gathering(self) -> Callable[[Tensor, Tensor], None]:
        """Choose what this pass does with the rows of all ranks and this rank's shard."""
        assert self.code is not None
        return partial(self._gather, self.code)

    def _gather(self, code: Compressor, weights: Tensor, own: Tensor) -> None:
        """Write the shard of each rank to its row of ``weights``, of which this rank's own is one."""
        session = self._current(own.dtype, code)
        session.send(self.wire.scratch.float32(own), Key())
        session.receive(weights.unbind(), self.wire.scratch.float32)

    def _part(self, dtype: torch.dtype, main: Compressor) -> Part:
        """The pieces of a shard in a dtype, and how they are packed with this method."""
        if (dtype, main) not in self._parts:
            pieces, lo = [], 0
            for cut in self.cuts:
                code = self.wire.policy.choose(cut.name, cut.shape, main) or EXACT[dtype]
                unit = Unit(((cut.name, cut.chunk),), (cut.chunk,), lo, code, NoMemory())
                pieces.append(Piece(unit, unit.memory, unit.shape, lo))
                lo += cut.chunk
            self._parts[dtype, main] = Part(pieces)
        return self._parts[dtype, main]

    def _current(self, dtype: torch.dtype, code: Compressor) -> GatherSession:
        part, session = self._part(dtype, code), self._session
        room = self.wire.room(part.packing.nbytes)
        # The room is shared, and becomes another one where somebody needs more.
        if session is None or session.part is not part or session.rows.buffer.data_ptr() != room.data_ptr():
            self._session = session = GatherSession(part, self.wire.channel, room)
        return session


class DifferenceGather(WeightGather):
    """A gather that sends differences: h = h + C(w - h), and all ranks compute with the estimate h of the weights w.

    Every rank keeps h of all ranks' shards, in the dtype of the gather: as much memory as the whole module. The owner
    of a shard subtracts the h that the others have, too, so nothing drifts: what a difference lost is in the next.
    The first gather sends h as it is, the weights themselves or what a checkpoint has. What travels as it is in other
    gathers does so here.

    Traffic: (W-1) times the payload of a rank's shard in the forward pass; nothing in the backward pass.

    Args:
        backward: returns whether FSDP gathers for a backward pass now.
    """

    def __init__(
        self,
        wire: WeightWire,
        cuts: Sequence[Sharded],
        group: dist.ProcessGroup,
        theirs: Any,
        backward: Callable[[], bool],
    ) -> None:
        super().__init__(wire, cuts, group, theirs)
        self.backward = backward
        self.estimate: Tensor | None = None
        self._start: Tensor | None = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return this rank's own part of h, by parameter; before the first gather what was loaded, or nothing."""
        own = self._start if self.estimate is None else self.estimate[self.wire.channel.rank]
        if own is None:
            return {}
        parts = torch.split(own, [cut.chunk for cut in self.cuts])
        # A view would be saved with the parts of all ranks.
        return {cut.name: part.clone() for cut, part in zip(self.cuts, parts, strict=True)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Begin the next gather with a saved h; with the weights where a parameter is not there or of another size."""
        self.estimate = None
        found = [state[cut.name] for cut in self.cuts if cut.name in state and state[cut.name].numel() == cut.chunk]
        self._start = torch.cat([part.flatten() for part in found]) if len(found) == len(self.cuts) else None

    def _sends(self, dtype: torch.dtype, code: Compressor) -> int:
        return 0 if self.backward() else super()._sends(dtype, code)

    def _gathering(self) -> Callable[[Tensor, Tensor], None]:
        assert self.code is not None
        return partial(self._estimated, self.code, self.backward())

    def _estimated(self, code: Compressor, backward: bool, weights: Tensor, own: Tensor) -> None:
        channel = self.wire.channel
        if self.estimate is None or self.estimate.dtype != own.dtype:
            self.estimate = self._whole(own)
        elif backward:
            # Nothing is sent: the forward pass has brought all ranks to this estimate.
            weights.copy_(self.estimate)
            return
        estimate = self.estimate
        session = self._current(own.dtype, code)
        part, rows = session.part, session.rows
        exact = [slice(each.lo, each.lo + each.numel) for each in part.pieces if each.unit.compressor is not code]
        with channel.metrics.timed("encode"):
            # FSDP has copied the shard here; its place gets the decoded one below.
            flat, kept = self.wire.scratch.float32(own), estimate[channel.rank]
            masters = [flat[span].clone() for span in exact]
            flat.sub_(kept)
            for span, master in zip(exact, masters, strict=True):
                flat[span].copy_(master)
        session.send(flat, Key())
        with channel.metrics.timed("decode"):
            for index, (shard, kept) in enumerate(zip(weights, estimate, strict=True)):
                message = rows.row(index)
                out = shard.copy_(kept) if shard.dtype == torch.float32 else self.wire.scratch.float32(kept)
                for span in exact:
                    out[span].zero_()
                part.add_decoded(message.stacked, out, 1.0)
                if out is not shard:
                    shard.copy_(out)
                bad = message.status.ne(0)
                # On a CPU the flag is known at once, which saves two passes over the weights.
                if bad.device.type == "cpu" and not bool(bad):
                    kept.copy_(shard)
                    continue
                # The estimate stays finite: a NaN in it would be in all later differences.
                torch.where(bad, kept, shard, out=kept)
                shard.masked_fill_(bad, float("nan"))

    def _whole(self, own: Tensor) -> Tensor:
        """Gather the start of h as it is, in as many bytes as FSDP's own gather."""
        channel, start = self.wire.channel, self._start
        rows = own.new_empty(channel.world, own.numel())
        rows[channel.rank].copy_(own if start is None else start)
        channel.all_gather(rows.view(torch.uint8))
        # A saved estimate is the beginning of one gather; later ones begin with the weights.
        self._start = None
        # Weights that are not finite would stay in h for ever.
        return torch.nan_to_num_(rows, nan=0.0, posinf=0.0, neginf=0.0)
