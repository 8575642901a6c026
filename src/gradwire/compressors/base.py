"""The contract of a compressor.

A compressor is configuration only: a frozen dataclass, so equality, ``repr`` and a JSON round trip come for free.
Whatever it must remember (a warm-start factor, a momentum) is a separate ``State``, a dict of plain tensors that the
caller keeps and checkpoints. It never sees ``torch.distributed`` and never touches a global random generator.

Its operations, for a compensated gradient x of n float32 elements, a payload p and C(x) = D(p):

    layout(shape)                         the exact bytes of p, from configuration and shape alone
    encode(x, p, state, key)              write p into views of a send buffer; x stays as it is
    add_decoded(p, out, scale)            out += scale * D(p); the only decoder there is

``add_decoded`` serves decompression (zeros, 1), the residual (r, -1), the mean over ranks (out, 1/W) and a server's
accumulator (acc, 1). Four more entries exist for speed, with defaults that follow from the three above:

    encode_feedback(grad, residual, p, state, key, status)    x = residual + grad;  residual = x - D(p)
    encode_momentum(grad, momentum, beta, p, state, key, status)    x = momentum = beta momentum + (1 - beta) grad
    encode_averaged(grad, error, weight, share, p, state, key, status)    x = grad + weight error;
                                                              error = share error + x - D(p), stored in any form
    add_decoded_many(payloads, out, scale)                    one payload of each rank, in rank order

Tensors are contiguous float32 in the parameter's shape (operations take them as flat). Payload fields
are typed views in the order of ``layout(shape).fields``; ``add_decoded_many`` gets the same fields with a leading
rank dimension. Nothing here allocates memory of the gradient's size.

A method of several rounds (``MultiRound``) adds a generator that pauses wherever a field must be averaged over the
ranks; who averages (a collective, a server, a plain mean in a test) is the driver's business.

What a compressor declares chooses the strategy and the tests; nothing asks for it by name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradwire import kernels, registry
from gradwire.errors import ConfigError, WireError
from gradwire.kernels.stored import accumulate_into, mix_into
from gradwire.vocabulary import Configuration, Key, Layout, Payload, State, overrides

__all__ = ["MOST_USED", "Compressor", "Family", "Feedback", "MultiRound", "as_gradient", "reduce_fields"]

MOST_USED = 2**31 - 1
"""Bytes of a stream of variable size."""

Family = Literal["cast", "quantisation", "sparsification", "hybrid", "low rank", "wrapper"]
"""Ways in which a method saves bytes: fewer bits for an element, fewer elements, both, thin factors, or another method
inside."""

Feedback = Literal["required", "optional", "built-in", "unsafe"]
"""Roles of error feedback for a method.

required: a contraction that loses its way without it. optional: harmless either way. built-in: the residual is part
of the method. unsafe: the variance factor is 1 or more, so the residual would grow without bound.
"""


_CODE = {
    "encode",
    "encode_scaled",
    "encode_feedback",
    "encode_momentum",
    "add_decoded",
    "add_decoded_many",
    "decode_many",
}
"""Methods that a compressor may implement in its own way, on one tensor."""


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

    identity: ClassVar[bool] = False
    """D(encode(x)) = x and the payload is x: nothing is compressed, so gradients travel as they are."""

    plain_dtype: ClassVar[torch.dtype | None] = None
    """A payload is the elements themselves in this type; None: it is made of codes."""

    summable: ClassVar[bool] = False
    """Payloads may be summed element by element: D(p + q) = D(p) + D(q). All fields then share one float dtype."""

    average: ClassVar[bool] = True
    """True: the result is the mean of what the ranks' payloads decode to. False: their sum, or whatever else
    ``add_decoded_many`` makes of all of them; summed payloads are then not divided by the world size."""

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

    used_on_host: ClassVar[bool] = False
    """A decoder of variable size reads ``used`` on the host alone. Where it is known there it may be given as a tensor
    of the CPU among those of another device, so that nothing waits for it."""

    rounds_needed: ClassVar[int] = 1
    """Number of times that ranks must average before the payload is complete (``MultiRound`` only)."""

    portable: ClassVar[bool] = True
    """A payload has the same bits on every machine. Not where matrices are multiplied: a product's last bits belong to
    the BLAS, so frozen payloads are compared as numbers."""

    overflows: ClassVar[bool] = True
    """x - D(encode(x)) may be infinite or NaN where x is finite."""

    headroom: ClassVar[float] = 2.0**32
    """An element that is infinite times this counts as not finite where nobody looks at what was decoded, because
    squares, products or sums may overflow there."""

    exact_entries: ClassVar[bool] = False
    """The payload is the values of some elements in float32, how many each segment of 65536 has, and the low 16 bits of
    their increasing indices: entries that a strategy can add up."""

    in_rounds: ClassVar[bool] = False
    """The payload is complete only after the ranks reduced parts of it: ``MultiRound``."""

    settles: ClassVar[bool] = False
    """The mean is not what the optimizer gets: ``settle`` is its own."""

    declared_by: ClassVar = {"settles": ("settle",)}

    factorises: ClassVar[bool] = False
    """``encode`` decomposes the gradient, or searches estimates of all its elements, in room of the gradient's size."""

    memory: ClassVar[str | None] = None
    """The memory that the method is defined with; None: what ``feedback`` needs."""

    votes: ClassVar[bool] = False
    """``settle`` makes something else of the mean, such as its sign: what arrives is no estimate of a gradient."""

    advice: ClassVar[int] = 0
    """Number of float32 that the ranks keep agreeing on, such as a threshold: ``encode`` leaves this rank's wish,
    finite, in ``state["advice"]`` and finds in ``state["agreed"]`` the mean over the ranks of their wishes in an
    earlier step, NaN before the first. They travel with the uncompressed parameters of the next step, so they cost no
    message."""

    takes_pieces: ClassVar[bool] = False
    """All that encodes, decodes and settles takes ``gradwire.kernels.Pieces`` in place of tensors, as operations: then
    the pieces of a message are worked on in one call. They are flat; ``Pieces.shapes`` are the shapes of the tensors. A
    subclass that does any of these in its own way says it anew."""

    tells_nonfinite: ClassVar[bool] = False
    """A payload has an infinity or a NaN where what was encoded has: also the sum of such payloads tells of it."""

    only_adds: ClassVar[bool] = True
    """``decode_many`` is the contract's own, which adds to zeros. It follows from the class: nobody declares it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if overrides(cls, ("decode_many",), "only_adds"):
            cls.only_adds = False
        if overrides(cls, _CODE | {"settle"}, "takes_pieces"):
            cls.takes_pieces = False
        if overrides(cls, ("encode", "encode_scaled"), "tells_nonfinite"):
            cls.tells_nonfinite = False
        if overrides(cls, _CODE, "sums_in"):
            cls.sums_in = Compressor.sums_in  # type: ignore[method-assign]
        if overrides(cls, ("add_decoded", "add_decoded_many"), "decode_many"):
            # A class with its own decoder must not inherit the faster one of its base, which decodes another method.
            cls.decode_many = Compressor.decode_many  # type: ignore[method-assign]
            cls.only_adds = True

    @property
    def feedback(self) -> Feedback:
        """The kind of error feedback, see ``Feedback``; a property, because it may depend on the parameters."""
        return "optional"

    @property
    def fine(self) -> bool:
        """Return whether the part of a gradient that a step does not send is small, so that optimizers that divide by
        the size of recent gradients work well with a residual of it; ``gradwire.testing.adaptive`` measures it.
        """
        return False

    @property
    def spreads(self) -> bool:
        """Return whether zeros arrive as noise that is not small beside other elements: an optimizer that divides each
        element by its own size makes steps of it.
        """
        return False

    def sums_in(self, dtype: torch.dtype) -> bool:
        """Return whether the payload of gradients of this dtype is the gradients themselves, which are summed in it.

        Then a bucket may be averaged where it lies, without a payload. A subclass that encodes or decodes in its own
        way says it anew.
        """
        return False

    @property
    def bounded(self) -> str:
        """The form of this method, or another method, that is safe with a residual if ``feedback`` is "unsafe"."""
        return ""

    @property
    def contraction(self) -> bool:
        """Return whether E|C(x) - x|^2 <= (1 - delta)|x|^2 holds for a delta > 0, which ``delta`` gives."""
        return False

    def delta(self, n: int) -> float:
        """The contraction constant for ``n`` elements, in (0, 1]; 0 if none is known."""
        return 0.0

    def omega(self, n: int) -> float:
        """The variance factor of an unbiased method: E|C(x) - x|^2 <= omega |x|^2; infinite if none is known."""
        return math.inf

    @property
    def for_mean(self) -> Compressor:
        """The compressor that encodes a mean again; another one where this one would add too much noise to it.

        The noise of the ranks' own codes is averaged over the ranks. That of a mean reaches all of them as it is.
        """
        return self

    @property
    def alignment(self) -> int:
        """The multiple of elements at which a tensor may be cut into shards; 0 if it may not be cut."""
        return 1

    def pays_for(self, shape: Sequence[int]) -> bool:
        """Return whether the payload of a tensor of this shape is smaller than the tensor; if not, it travels dense.

        So does a tensor whose stream of variable size may have more bytes than the int32 ``used`` can say.
        """
        n = math.prod(shape)
        if n == 0:
            return False
        layout = self.layout(shape)
        return layout.nbytes < 4 * n if self.fixed_size else layout.fields[-1].count <= MOST_USED

    @abstractmethod
    def layout(self, shape: Sequence[int]) -> Layout:
        """The bytes of a payload, the same on every rank; their total is what goes over the wire."""

    def traffic(self, shape: Sequence[int]) -> float:
        """The bytes of a payload that cross the network, as the mean over many steps; those of the layout if all of it
        travels.
        """
        return float(self.layout(shape).nbytes)

    def check_world(self, world: int) -> None:
        """Refuse a number of workers whose sum does not fit into the payload; most methods serve any number.

        Args:
            world: workers whose payloads are summed as integers, >= 1.

        Raises:
            ConfigError: the sum does not fit; the message names the parameter and the largest value that fits.
        """
        return

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        """Make the state that the method keeps between steps besides the residual; most methods keep none."""
        return {}

    @abstractmethod
    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        """Write the payload of ``x``; every byte that travels is written."""

    @abstractmethod
    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        """Compute ``out += scale * D(payload)``."""

    def encode_scaled(self, x: Tensor, scale: float, payload: Payload, state: State, key: Key) -> None:
        """Encode ``scale * x``; ``x`` stays as it is. Only summable methods are asked."""
        self.encode(x * scale, payload, state, key)

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
        if status is not None and self.overflows:
            # x - D(p) is not finite where D(p) overflowed, too.
            kernels.nonfinite(residual.view(-1), status)

    def encode_momentum(
        self,
        grad: Tensor,
        momentum: Tensor,
        beta: float,
        payload: Payload,
        state: State,
        key: Key,
        status: Tensor | None = None,
    ) -> None:
        """Mix a gradient into a running mean and encode that: momentum = beta * momentum + (1 - beta) * grad.

        Args:
            grad: gradient of this rank. Unchanged without ``status``.
            momentum: overwritten.
            beta: weight of the old momentum, in [0, 1).
            status: int32, 1 element, or None, as in ``encode_feedback``; ``grad`` receives the old momentum.
        """
        kernels.momentum_update(grad, momentum, beta, status)
        self.encode(momentum, payload, state, key)

    def encode_averaged(
        self,
        grad: Tensor,
        error: Tensor,
        weight: float,
        share: float,
        payload: Payload,
        state: State,
        key: Key,
        status: Tensor,
        scale: float = 1.0,
    ) -> None:
        """Add a running sum of earlier errors to a gradient, encode that, and take the new error into the sum.

        x = grad + weight * error, the payload is that of scale * x, and error = share * error + x - D(payload) / scale.

        Args:
            grad: gradient of this rank; becomes the old error.
            error: stored in any form that ``gradwire.kernels.stored`` knows; overwritten.
            weight: weight of the errors in x.
            share: share of the errors that stays.
            status: int32 of one element; bit 0 is set as in ``encode_feedback``.
            scale: 1 except for summable methods.
        """
        accumulate_into(grad, error, weight)
        if scale != 1.0:
            grad.mul_(scale)
        kernels.nonfinite(grad.view(-1), status)
        self.encode(grad, payload, state, key)
        self.add_decoded(payload, grad, -1.0)
        if scale != 1.0:
            grad.mul_(1.0 / scale)
        # x - D(p) is not finite where D(p) overflowed, too.
        kernels.nonfinite(grad.view(-1), status)
        mix_into(error, share, grad)

    def settle(self, mean: Tensor) -> None:
        """Turn the mean of the decoded payloads into what the optimizer gets, in place: a vote takes its sign.

        It runs once on every element, on each rank alike or by the owner of a shard, who compresses the result again:
        what it leaves must be a fixed point of the method's own code.
        """
        return

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        """Compute ``out += scale * sum_w D(payloads[w])``, in rank order so that every rank gets the same bits."""
        for rank in range(payloads[0].shape[0]):
            self.add_decoded(tuple(field[rank] for field in payloads), out, scale)

    def decode_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        """Compute ``out = scale * sum_w D(payloads[w])``, whatever ``out`` was; this is faster if
        it need not be read.
        """
        kernels.fill_where(out, 0.0)
        self.add_decoded_many(payloads, out, scale)

    def same_method(self, other: Compressor) -> bool:
        """Return whether the other is this method, with whatever parameters."""
        return type(self) is type(other)

    def in_16_bits(self) -> Compressor:
        """Return the form of this method whose residual may be kept in 16 bits; the same payloads cross the network.

        Raises:
            ConfigError: there is no such form.
        """
        return self

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse bytes from outside that ``add_decoded`` cannot decode safely.

        Raises:
            WireError: an index out of range, a count that does not add up. Most methods accept any bytes.
        """
        return

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

    def properties(self) -> dict[str, Any]:
        """Return all declared properties, for ``gradwire methods`` and the docs table."""
        return {
            "name": self.name,
            "family": self.family,
            "params": {k: v for k, v in self.to_config().items() if k != "name"},
            "summable": self.summable,
            "unbiased": self.unbiased,
            "contraction": self.contraction,
            "random": self.random,
            "elementwise": self.elementwise,
            "fixed_size": self.fixed_size,
            "feedback": self.feedback,
            "rounds": self.rounds_needed,
            "alignment": self.alignment,
            "bits_per_element": round(8 * self.traffic((1024, 1024)) / 2**20, 4),
            "reference": self.reference,
        }


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

    own_share: ClassVar[bool] = False
    """True: the contribution of a rank can be told from the mean, and ``add_own`` adds it."""

    declared_by: ClassVar = {**Compressor.declared_by, "own_share": ("add_own",)}

    rounds_only: ClassVar[tuple[str, ...]] = ()
    """Fields that only rounds read, or this rank alone: ``add_decoded`` does without them. A worker that runs its
    rounds alone and sends the payload to a server leaves them out."""

    family: ClassVar[Family] = "low rank"
    portable = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if overrides(cls, ("add_own", "add_decoded"), "add_own_each"):
            cls.add_own_each = MultiRound.add_own_each  # type: ignore[method-assign]
        if overrides(cls, ("add_decoded",), "add_decoded_each"):
            cls.add_decoded_each = MultiRound.add_decoded_each  # type: ignore[method-assign]

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

    def add_own(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        """Compute ``out += scale *`` this rank's part in the result: the part that its residual no longer needs to
        keep.

        By default that is the mean itself, and a residual also keeps how this rank differs from the others.
        """
        self.add_decoded(payload, out, scale)

    def add_own_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        """Call ``add_own`` for every tensor of a bucket."""
        if not self.own_share:
            self.add_decoded_each(payloads, outs, scale)
            return
        for payload, out in zip(payloads, outs, strict=True):
            self.add_own(payload, out, scale)

    def add_decoded_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        """Call ``add_decoded`` for every tensor of a bucket."""
        for payload, out in zip(payloads, outs, strict=True):
            self.add_decoded(payload, out, scale)

    def in_16_bits(self) -> Compressor:
        """Refuse if ``add_own`` is the mean, because then the residual grows by a rank's difference from the others.

        The mean over the ranks is a small difference of these, and a sum that is rounded to 8 bits loses it.
        """
        if not self.own_share:
            raise ConfigError(
                f"the residual of {self.name!r} must be float32, got fewer bits: it also collects how the ranks' "
                "gradients differ, without bound; leave residual_dtype out, or use powersgd"
            )
        return self

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
