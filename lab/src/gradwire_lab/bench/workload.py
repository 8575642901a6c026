"""Tensors with which one compressor is measured at one size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.kernels.stored import FLOAT32, shaped, stored_like, write
from gradwire.memory import facts
from gradwire.memory.base import Memory
from gradwire.vocabulary import Key, Layout, Payload, align
from gradwire.wire import sent_nbytes

__all__ = ["Workload", "filled"]

_RANK_STRIDE = 16


class Workload:
    """A gradient and a residual of normal random values, and the payloads of ``ranks`` ranks, or room for them.

    Two workloads of the same arguments hold the same values.

    Args:
        compressor: compressor to measure.
        n: elements; they form the most nearly square matrix, because some methods need one.
        ranks: payloads that ``fill`` makes.
        poison: the byte that payloads are filled with before anything is written to them.
        rows: payloads to use in place of new ones, as ``filled`` gives them.
        device: device of all tensors, which hold the same values everywhere.
    """

    def __init__(
        self,
        compressor: Compressor,
        n: int,
        ranks: int = 1,
        poison: int = 0,
        rows: Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.compressor, self.n, self.ranks, self.key = compressor, n, ranks, Key(seed=1, tensor=7)
        self.device = torch.device(device)
        self.shape = _matrix(n)
        self.layout = compressor.layout(self.shape)
        self.grad = _gradient(n, 0).to(self.device, copy=True)
        self.residual = _gradient(n, 1).mul(0.5).to(self.device)
        self.out = _gradient(n, 2).to(self.device, copy=True)
        self.status = torch.zeros(1, dtype=torch.int32, device=self.device)
        named = capabilities.memory(compressor)
        own: Memory | None = None if named is None else registry.build("memory", named)
        self.memory = None if own is None or facts.plain(own) else own
        """The one that the method is defined with, where it is another than a plain residual."""
        form, buffers = (FLOAT32, ()) if self.memory is None else (self.memory.form, self.memory.buffers)
        self.kept = {name: shaped(form.zeros(n, self.device), self.shape) for name in buffers}
        if "residual" in self.kept and form == FLOAT32:
            self.kept["residual"] = self.residual
        self._restore_kept()
        self.state = compressor.init_state(self.shape, self.key, self.device)
        rows = _room(self.layout, ranks, poison) if rows is None else rows
        self.rows = rows.to(self.device)[:, : self.layout.nbytes]
        self.payloads: Payload = self.layout.views(self.rows)

    @cached_property
    def payload(self) -> Payload:
        """The payload of the first rank: views that are made once, as those of an exchange are."""
        return self.of_rank(0)

    def of_rank(self, rank: int) -> Payload:
        return tuple(field[rank] for field in self.payloads)

    @property
    def sent(self) -> float:
        """The bytes of the first rank's payload that travel: for a variable size, those that it declares in use."""
        if self.compressor.fixed_size:
            return capabilities.traffic(self.compressor, self.shape)
        return sent_nbytes(self.compressor, self.layout, self.rows[0])

    @property
    def touched(self) -> int:
        """The number of elements that decoding must touch, over all ranks: those that a payload names, else all that
        are not zero.
        """
        named = self.layout.count("indices")
        if named:
            return named * self.ranks
        if self.compressor.fixed_size:
            return self.n * self.ranks
        return sum(self._nonzero(rank) for rank in range(self.ranks))

    def _nonzero(self, rank: int) -> int:
        decoded = torch.zeros(self.shape)
        self.compressor.add_decoded(self.of_rank(rank), decoded)
        return int(decoded.count_nonzero())

    def restore(self) -> None:
        """Restore the values of the gradient and the residual."""
        self.grad.copy_(_gradient(self.n, 0))
        self.residual.copy_(_gradient(self.n, 1)).mul_(0.5)
        self._restore_kept()

    def changed(self) -> int:
        """Count the memory's tensors that an operation changed, without those that only serve to undo it."""
        lasting = [name for name in self.kept if self.memory is not None and name not in self.memory.transient]
        return sum(not torch.equal(self.kept[name], self._stored_at_first(name)) for name in lasting)

    def _stored_at_first(self, name: str) -> Tensor:
        return shaped(stored_like(self.kept[name], self._kept_at_first(name).view(-1)), self.shape)

    def _restore_kept(self) -> None:
        for name, tensor in self.kept.items():
            write(tensor, self._kept_at_first(name))

    def _kept_at_first(self, name: str) -> Tensor:
        """The first value of a kept tensor: half a gradient of its own, its square if squares are kept, zero if it is
        work space.
        """
        assert self.memory is not None
        if name in self.memory.transient:
            return torch.zeros(self.shape, device=self.device)
        noise = _gradient(self.n, 1 + list(self.kept).index(name)).to(self.device) * 0.5
        return noise.square() if name in self.memory.squared else noise

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The meaningful tensors that an operation may write, by name."""
        yield from (("grad", self.grad), ("residual", self.residual), ("out", self.out), ("status", self.status))
        yield from ((f"state {name}", value) for name, value in self.state.items())
        yield from ((f"kept {name}", value) for name, value in self.kept.items())
        layout = self.layout if self.compressor.fixed_size else self.layout.cut(int(self.payload[0]))
        for field, values in zip(layout.fields, self.payloads, strict=True):
            yield f"payload {field.name}", values[:, : field.count]


@lru_cache(maxsize=1)
def filled(compressor: Compressor, n: int, ranks: int) -> Tensor:
    """Make the payloads of gradients, a different one for each rank; encoding may take much longer than the measured
    operation.

    Everyone who asks for the same payloads gets the same memory; whoever decodes only reads it.
    """
    layout, key = compressor.layout(_matrix(n)), Key(seed=1, tensor=7)
    rows, state = _room(layout, ranks, 0), compressor.init_state(_matrix(n), key)
    for rank in range(ranks):
        compressor.encode(_gradient(n, rank).clone(), layout.views(rows[rank, : layout.nbytes]), state, key)
    return rows


def _room(layout: Layout, ranks: int, poison: int) -> Tensor:
    return torch.full((ranks, align(layout.nbytes)), poison, dtype=torch.uint8)


def _gradient(n: int, rank: int) -> Tensor:
    noise = _noise(n + 16 * _RANK_STRIDE)
    return noise[rank * _RANK_STRIDE :][:n].view(_matrix(n))


# A size is checked at a smaller one first: both are asked for again and again.
@lru_cache(maxsize=2)
def _noise(n: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(20))


def _matrix(n: int) -> tuple[int, int]:
    """The most nearly square shape of n elements; (1, n) for a prime.

    >>> _matrix(1 << 13), _matrix(7)
    ((64, 128), (1, 7))
    """
    rows = next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)
    return rows, n // rows
