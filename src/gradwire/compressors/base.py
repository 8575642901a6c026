"""The contract of a compressor.

A compressor is configuration only: a frozen dataclass, so equality, ``repr`` and a JSON round trip come for free.
Whatever it must remember (a warm-start factor, a momentum) is a separate ``State``, a dict of plain tensors that the
caller keeps and checkpoints. It never sees ``torch.distributed`` and never touches a global random generator.

Its operations, for a compensated gradient x of n float32 elements, a payload p and C(x) = D(p):

    layout(shape)                         the exact bytes of p, from configuration and shape alone
    encode(x, p, state, key)              write p into views of a send buffer; x stays as it is
    add_decoded(p, out, scale)            out += scale * D(p); the only decoder there is

``add_decoded`` serves decompression (zeros, 1), the residual (r, -1), the mean over ranks (out, 1/W) and a server's
accumulator (acc, 1). Two more entries exist for speed, with defaults that follow from the three above:

    encode_feedback(grad, residual, p, state, key, status)    x = residual + grad;  residual = x - D(p)
    add_decoded_many(payloads, out, scale)                    one payload of each rank, in rank order

What few methods need to say, and other passes that a kernel can do at once, are in ``capabilities``: a class answers
there by an attribute or a method of that name.

Tensors are contiguous float32 in the parameter's shape (operations take them as flat). Payload fields
are typed views in the order of ``layout(shape).fields``; ``add_decoded_many`` gets the same fields with a leading
rank dimension. Nothing here allocates memory of the gradient's size.

A method of several rounds (``MultiRound``) adds a generator that pauses wherever a field must be averaged over the
ranks; who averages (a collective, a server, a plain mean in a test) is the driver's business.

What a compressor declares chooses the strategy and the tests; nothing asks for it by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradwire import kernels, registry
from gradwire.compressors import capabilities
from gradwire.errors import ConfigError, WireError
from gradwire.vocabulary import Configuration, Key, Layout, Payload, State

__all__ = ["Compressor", "Family", "Feedback", "MultiRound", "reduce_fields"]

Family = Literal["cast", "quantisation", "sparsification", "hybrid", "low rank", "wrapper"]
"""Ways in which a method saves bytes: fewer bits for an element, fewer elements, both, thin factors, or another method
inside."""

Feedback = Literal["required", "optional", "built-in", "unsafe"]
"""Roles of error feedback for a method.

required: a contraction that loses its way without it. optional: harmless either way. built-in: the residual is part
of the method. unsafe: the variance factor is 1 or more, so the residual would grow without bound.
"""


def as_gradient(x: Tensor) -> Tensor:
    """Convert any dense tensor of floating-point numbers to the contiguous float32 that ``encode`` takes; a view if it
    is that already.

    Raises:
        ConfigError: the tensor is sparse, complex or of integers.
    """
    if not isinstance(x, Tensor):
        raise ConfigError(f"a gradient must be a tensor, got {type(x).__name__}")
    if x.layout != torch.strided or not x.dtype.is_floating_point:
        raise ConfigError(f"a gradient must be a dense floating-point tensor, got {x.dtype} with layout {x.layout}")
    return x.detach().to(torch.float32).contiguous()


class Compressor(Configuration, ABC):
    """Base of every compressor: subclass it as a frozen dataclass, one in each file. The module states the contract."""

    name: ClassVar[str]
    """Registry name, equal to the file's."""

    reference: ClassVar[str]
    """Authors, title, venue, year."""

    family: ClassVar[Family] = "quantisation"
    """Class of the method in the tables; see ``Family``."""

    summable: ClassVar[bool] = False
    """Payloads may be summed element by element: D(p + q) = D(p) + D(q). All fields then share one float dtype."""

    unbiased: ClassVar[bool] = False
    """E[C(x)] = x over the random stream."""

    random: ClassVar[bool] = False
    """The payload depends on ``key``."""

    elementwise: ClassVar[bool] = False
    """An element's code depends on that element only, so neighbouring tensors may be encoded as one."""

    fixed_size: ClassVar[bool] = True
    """``encode`` fills the whole layout. Otherwise the layout is a capacity: its first field is the int32 ``used``, the
    bytes in use of its last one, the uint8 ``stream``. What is not in use has no meaning: it is not written, does not
    travel, and a decoder, which gets the last field with or without it, does not look at it."""

    # A method writes these three.

    @abstractmethod
    def layout(self, shape: Sequence[int]) -> Layout:
        """The bytes of a payload, the same on every rank; their total is what goes over the wire."""

    @abstractmethod
    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        """Write the payload of ``x``; every byte that travels is written."""

    @abstractmethod
    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        """Compute ``out += scale * D(payload)``."""

    # It may write these.

    @property
    def feedback(self) -> Feedback:
        """The kind of error feedback, see ``Feedback``; a property, because it may depend on the parameters."""
        return "optional"

    @property
    def alignment(self) -> int:
        """The multiple of elements at which a tensor may be cut into shards; 0 if it may not be cut."""
        return 1

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        """Make the state that the method keeps between steps besides the residual; most methods keep none."""
        return {}

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        """Compensate, encode, and keep what was not sent: x = residual + grad, residual = x - D(payload).

        Args:
            grad: gradient of this rank. Unchanged without ``status``.
            residual: overwritten.
            status: int32 of one element. If given, the call can be undone: ``grad`` receives the residual as it
                was before, and bit 0 is set when any element of x or of the new residual is not finite (a code may
                overflow where x did not). It is never cleared here.
        """
        kernels.accumulate(grad, residual, status)
        self.encode(residual, payload, state, key)
        self.add_decoded(payload, residual, -1.0)
        if status is not None and capabilities.overflows(self):
            # x - D(p) is not finite where D(p) overflowed, too.
            kernels.nonfinite(residual.view(-1), status)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        """Compute ``out += scale * sum_w D(payloads[w])``, in rank order so that every rank gets the same bits."""
        for rank in range(payloads[0].shape[0]):
            self.add_decoded(tuple(field[rank] for field in payloads), out, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse bytes from outside that ``add_decoded`` cannot decode safely.

        Raises:
            WireError: an index out of range, a count that does not add up. Most methods accept any bytes.
        """
        return

    # Whoever uses it calls these.

    def compress(self, x: Tensor, state: State | None = None, key: Key | None = None) -> Tensor:
        """Encode into a new uint8 buffer; for notebooks and tests, not for a training loop.

        >>> from gradwire.compressors.ternary.twobit import TwoBit
        >>> TwoBit(threshold=0.5).compress(torch.tensor([0.6, -0.5, 0.1])).tolist()
        [224, 0, 0, 0]

        Raises:
            ConfigError: x is not a dense tensor of floating-point numbers.
        """
        x, layout = as_gradient(x), self.layout(x.shape)
        buffer = torch.zeros(layout.nbytes, dtype=torch.uint8, device=x.device)
        key = key or Key()
        self.encode(x, layout.views(buffer), state or self.init_state(x.shape, key, x.device), key)
        return buffer

    def decompress(self, buffer: Tensor, shape: Sequence[int]) -> Tensor:
        """Decode the buffer of ``compress`` into a new float32 tensor.

        Raises:
            ConfigError: the buffer is no tensor.
            WireError: the buffer is not as long as the layout, or its contents cannot be decoded safely.
        """
        if not isinstance(buffer, Tensor):
            raise ConfigError(f"a payload must be a tensor, got {type(buffer).__name__}")
        layout = self.layout(shape)
        if buffer.dtype != torch.uint8 or buffer.numel() != layout.nbytes:
            raise WireError(
                f"{self.name} payload of shape {tuple(shape)} must be {layout.nbytes} uint8, "
                f"got {buffer.numel()} {buffer.dtype}"
            )
        payload = layout.views(buffer)
        self.check_payload(payload, shape)
        out = torch.zeros(tuple(shape), dtype=torch.float32, device=buffer.device)
        self.add_decoded(payload, out)
        return out

    def to_config(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values, from which ``registry.from_config`` makes the method again."""
        return registry.to_config(self)


class MultiRound(Compressor):
    """Base of a compressor whose payload is complete only after the ranks reduced parts of it.

    In each round one field of the layout is reduced over the ranks. After the last round the payload decodes to the
    mean over ranks. It takes all tensors of a bucket at once, so that matrices of one shape can be batched.
    """

    in_rounds = True

    reductions: ClassVar[tuple[str, ...]] = ()
    """Reduction of each field: "mean", "sum" or "max"; empty: all "mean". A mean is of float32. Integers are summed in
    their own type, so they need head-room, without which ``check_world`` refuses the group; the field that is reduced
    first must be float32, for it tells of a NaN."""

    family: ClassVar[Family] = "low rank"

    @abstractmethod
    def rounds(
        self, xs: Sequence[Tensor], payloads: Sequence[Payload], states: Sequence[State], keys: Sequence[Key]
    ) -> Iterator[int | None]:
        """Write a field of every payload, yield, and continue when it is reduced; and so on for all fields.

        What is yielded is the index of the field; None: the one after that of the round before. States change only
        after the last yield, so that a driver can drop a step by not resuming. ``xs`` stay as they are.
        """

    def pauses(
        self, xs: Sequence[Tensor], payloads: Sequence[Payload], states: Sequence[State], keys: Sequence[Key]
    ) -> Iterator[tuple[int, str]]:
        """Run ``rounds``; yield at each pause the index of the field to reduce now, and how."""
        field = -1
        for asked in self.rounds(xs, payloads, states, keys):
            field = field + 1 if asked is None else asked
            yield field, self.reductions[field] if self.reductions else "mean"

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        """Encode as a group of one, in which every average is the value itself."""
        for _ in self.rounds([x], [payload], [state], [key]):
            pass


def reduce_fields(fields: Sequence[Tensor], how: str) -> None:
    """Reduce one field of every rank in place, when all ranks are in this process.

    Args:
        fields: fields of one shape and dtype, one for each rank in rank order, on any devices.
        how: "mean", "sum" or "max", as ``MultiRound.pauses`` tells.

    Example:
        >>> ours, theirs = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 4.0])
        >>> reduce_fields([ours, theirs], "max")
        >>> ours.tolist(), theirs.tolist()
        ([3.0, 4.0], [3.0, 4.0])
    """
    if not fields[0].numel():
        return
    rows = torch.stack([each.to(fields[0].device) for each in fields])
    result = rows.amax(0) if how == "max" else rows.mean(0) if how == "mean" else rows.sum(0, dtype=rows.dtype)
    for each in fields:
        each.copy_(result)
