"""Compressed all-gather of weights for FSDP2.

Law: all ranks decode the same bytes, the owner of a shard its own, so all compute with the same weights; what the
optimizer updates is never touched. A module is gathered twice in a step, for the forward and for the backward pass,
and must be the same in both: so only methods are taken that give the same bytes for the same weights. Differences
are sent once, for the forward pass, because every rank then has the whole module, and the backward pass reads that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.two_phase import TwoPhase
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.bf16 import BF16
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.wrappers.ef21 import EF21
from gradwire.errors import require
from gradwire.exchange.policy import Policy
from gradwire.exchange.settings import build_compressor
from gradwire.frontends._background import Started
from gradwire.frontends.resharding import Sharded
from gradwire.frontends.setup import private_group
from gradwire.frontends.state_units import Scratch
from gradwire.group.channel import Channel
from gradwire.group.part import Message, Part, Piece, Unit
from gradwire.memory.none import NoMemory
from gradwire.metrics import Metrics
from gradwire.modes import ordinary, ordinary_modes
from gradwire.vocabulary import Key
from gradwire.worker import Worker

__all__ = ["DifferenceGather", "WeightGather", "WeightWire", "weight_code"]

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
        and code.inner.fine
        and not code.init_state((code.alignment,), Key(), torch.device("cpu"))
    )
    same = (kept or (code.fine and code.feedback != "required")) and not code.random and code.advice == 0
    allowed = (
        "a method whose error is small and that is not random, such as 'blockwise8', 'fp8' or 'bf16', or "
        "'ef21:inner=loco' for differences"
    )
    require(same, "weights", allowed, code.name)
    return code


class WeightWire:
    """The common state of a model's modules: the method, the group and the counters.

    Args:
        group: group over whose ranks the weights are sharded.
        timeout: seconds that an all-gather may take; None: as long as those of ``group``.
        metrics: counts the bytes of the all-gathers, and what they would have been.
    """

    def __init__(
        self,
        code: Compressor,
        policy: Policy,
        group: dist.ProcessGroup,
        timeout: float | None,
        device: torch.device,
        metrics: Metrics,
    ) -> None:
        self.code, self.policy, self.device = code, dataclasses.replace(policy, overrides={}), device
        lent = private_group(group, timeout, device)
        self.channel = Channel(lent.group, metrics)
        lent.hold(self.channel)
        self.scratch, self.worker = Scratch(), Worker()
        self._room = torch.empty(0, dtype=torch.uint8, device=device)

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
    """

    def __init__(self, wire: WeightWire, cuts: Sequence[Sharded], group: dist.ProcessGroup, theirs: Any) -> None:
        self.wire, self.cuts, self.group, self.theirs = wire, cuts, group, theirs
        self._made: tuple[torch.dtype, Part] | None = None
        self._rows: Message | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate memory for FSDP's weights."""
        return torch.empty(*size, dtype=dtype, device=device)

    @torch.no_grad()
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        """Write the weights of all ranks to the output; the input, a part of it, is this rank's shard."""
        channel, numel = self.wire.channel, input_tensor.numel()
        whole = numel == sum(cut.chunk for cut in self.cuts)
        if group is not self.group or not whole or input_tensor.dtype not in EXACT or channel.world == 1:
            return self.theirs(output_tensor, input_tensor, group, async_op)
        channel.metrics.dense_bytes += (channel.world - 1) * input_tensor.nbytes
        gather = self._gathering()

        def job() -> Tensor:
            with ordinary_modes():
                rows = ordinary(output_tensor).view(channel.world, -1)
                gather(rows, rows[channel.rank])
            return output_tensor

        return self.wire.start(job)

    def _gathering(self) -> Callable[[Tensor, Tensor], None]:
        """Choose what this pass does with the rows of all ranks and this rank's shard."""
        return self._gather

    def _gather(self, weights: Tensor, own: Tensor) -> None:
        """Write the shard of each rank to its row of ``weights``, of which this rank's own is one."""
        channel = self.wire.channel
        part, rows = self._current(own.dtype)
        with channel.metrics.timed("encode"):
            part.encode(self.wire.scratch.float32(own), rows.row(channel.rank), Key())
        channel.all_gather(rows.buffer)
        with channel.metrics.timed("decode"):
            for index, shard in enumerate(weights):
                message = rows.row(index)
                out = shard if shard.dtype == torch.float32 else self.wire.scratch.float32(shard)
                part.decode(message.stacked, out, 1.0)
                part.spoil(out, message.status.ne(0))
                if out is not shard:
                    shard.copy_(out)

    def _current(self, dtype: torch.dtype) -> tuple[Part, Message]:
        if self._made is None or self._made[0] != dtype:
            pieces, lo, wire = [], 0, self.wire
            for cut in self.cuts:
                code = wire.policy.choose(cut.name, cut.shape, wire.code) or EXACT[dtype]
                unit = Unit(((cut.name, cut.chunk),), (cut.chunk,), lo, code, NoMemory())
                pieces.append(Piece(unit, unit.memory, unit.shape, lo))
                lo += cut.chunk
            self._made = dtype, Part(pieces)
            self._rows = None
        part = self._made[1]
        room = self.wire.room(part.packing.nbytes)
        # The room is shared, and becomes another one where somebody needs more.
        if self._rows is None or self._rows.buffer.data_ptr() != room.data_ptr():
            self._rows = Message.on(part.packing, room)
        return part, self._rows


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
        """Return this rank's own part of h, by parameter; nothing before the first gather."""
        if self.estimate is None:
            return {}
        own = self.estimate[self.wire.channel.rank]
        parts = torch.split(own, [cut.chunk for cut in self.cuts])
        # A view would be saved with the parts of all ranks.
        return {cut.name: part.clone() for cut, part in zip(self.cuts, parts, strict=True)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Begin the next gather with a saved h; with the weights where a parameter is not there or of another size."""
        self.estimate = None
        found = [state[cut.name] for cut in self.cuts if cut.name in state and state[cut.name].numel() == cut.chunk]
        self._start = torch.cat([part.flatten() for part in found]) if len(found) == len(self.cuts) else None

    def _gathering(self) -> Callable[[Tensor, Tensor], None]:
        return partial(self._estimated, self.backward())

    def _estimated(self, backward: bool, weights: Tensor, own: Tensor) -> None:
        channel = self.wire.channel
        if self.estimate is None or self.estimate.dtype != own.dtype:
            self.estimate = self._whole(own)
        elif backward:
            weights.copy_(self.estimate)
            return
        estimate = self.estimate
        part, rows = self._current(own.dtype)
        code = self.wire.code
        exact = [slice(each.lo, each.lo + each.numel) for each in part.pieces if each.unit.compressor is not code]
        with channel.metrics.timed("encode"):
            # FSDP has copied the shard here; its place gets the decoded one below.
            flat, kept = self.wire.scratch.float32(own), estimate[channel.rank]
            masters = [flat[span].clone() for span in exact]
            flat.sub_(kept)
            for span, master in zip(exact, masters, strict=True):
                flat[span].copy_(master)
            part.encode(flat, rows.row(channel.rank), Key())
        channel.all_gather(rows.buffer)
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
                if bad.device.type == "cpu" and not bool(bad):
                    kept.copy_(shard)
                    continue
                torch.where(bad, kept, shard, out=kept)
                shard.masked_fill_(bad, float("nan"))

    def _whole(self, own: Tensor) -> Tensor:
        """Gather the start of h as it is, in as many bytes as FSDP's own gather."""
        channel, start = self.wire.channel, self._start
        rows = own.new_empty(channel.world, own.numel())
        rows[channel.rank].copy_(own if start is None else start)
        channel.all_gather(rows.view(torch.uint8))
        self._start = None
        # Weights that are not finite would stay in h for ever.
        return torch.nan_to_num_(rows, nan=0.0, posinf=0.0, neginf=0.0)
