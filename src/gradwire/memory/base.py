"""Contract of a memory, which decides what becomes of the part of a gradient that was not sent.

Invariants:
    * In the words of the GRACE survey, phi compensates the gradient, and psi keeps what its payload does not contain.
      ``encode`` does both in one call, so that a fused kernel can do them in one pass over memory; ``compensate`` and
      ``update`` are the halves.
    * A memory is configuration only. The tensors that it keeps for each element are named by ``buffers``, have the
      layout of the parameter, and are stored as ``form`` says. The caller owns them, keyed by parameter name, and
      passes views.
    * Every ``encode`` with a ``status`` can be undone: until the caller writes into ``grad`` again, ``rollback``
      restores the kept tensors bit for bit. So a step with a NaN on one rank leaves the memories of all ranks as they
      were.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from gradwire import kernels, registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError
from gradwire.kernels.stored import FLOAT32, StoredForm
from gradwire.vocabulary import Configuration, Key, Payload, State, overrides

__all__ = ["Memory", "check_memory", "check_rounds", "default_memory"]


def default_memory(compressor: Compressor) -> str:
    """The default memory: the method's own; else ``residual`` if it needs or contains error feedback, else ``none``."""
    if (own := capabilities.memory(compressor)) is not None:
        return own
    return "residual" if compressor.feedback in ("required", "built-in") else "none"


def check_rounds(memory: Memory, compressor: Compressor) -> None:
    """Refuse a memory that needs the decoded payload, for a result of several rounds.

    Raises:
        ConfigError: the memory needs the payload; the message names the memory to use.
    """
    if memory.one_round and capabilities.in_rounds(compressor):
        raise ConfigError(
            f"memory {memory.name!r} serves methods of one round, because it reads from one payload what was sent, but "
            f"{compressor.name!r} is averaged in rounds between the workers: use memory='residual'"
        )


_METHODS = ("encode", "encoded", "rollback", "compensate", "update", "begin", "finish", "returned")
"""Methods that a memory may implement in its own way."""


class Memory(Configuration, ABC):
    """Base of every memory: subclass it as a frozen dataclass, one in each file."""

    name: ClassVar[str]
    buffers: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors kept for each element."""

    transient: ClassVar[tuple[str, ...]] = ()
    """The names among ``buffers`` that only serve ``rollback`` and have no place in a checkpoint."""

    squared: ClassVar[tuple[str, ...]] = ()
    """The names among ``buffers`` of tensors in the square of the gradient's unit."""

    balanced: ClassVar[bool] = True
    """True: what went in is what came out and what is kept: nothing may be lost on the way either. So whoever
    compresses the mean a second time keeps a residual of it. Not where the memory itself lets go of what was not
    sent."""

    late: ClassVar[bool] = False
    """True: what was not sent goes in a later step, which optimizers that divide by past gradients do not forgive."""

    forgets: ClassVar[bool] = False
    """True: what was not sent is lost, which only methods that are right on average, or nearly exact, can have."""

    follows_mean: ClassVar[bool] = False
    """True: what is compressed depends on the mean that arrived before: every worker must hear it, and all of it."""

    tensorwise: ClassVar[bool] = False
    """True: what becomes of an element depends on the others of its parameter, by a mean or a norm: then parameters are
    not joined, or it would depend on the buckets."""

    keeps_mean: ClassVar[bool] = False
    """Something is kept of the mean that arrives: ``begin`` or ``finish`` is its own."""

    takes_back: ClassVar[bool] = False
    """Entries that were sent in vain are kept again: ``returned`` is its own."""

    declared_by: ClassVar = {"keeps_mean": ("begin", "finish"), "takes_back": ("returned",)}

    keeps_nothing: ClassVar[bool] = False
    """True: the gradient itself is encoded."""

    plain: ClassVar[bool] = False
    """True: what is not sent is added to the next gradient, or lost, element by element, and nothing else is done: the
    memory of several tensors side by side is that of one."""

    takes_dtype: ClassVar[bool] = False
    """True: the memory has a parameter ``dtype``, in which it stores what it keeps."""

    residual_is_momentum: ClassVar[bool] = False
    """True: what is kept in ``residual`` is a momentum, and no part of the parameters' change."""

    beta_is_momentum: ClassVar[bool] = False
    """True: the parameter ``beta`` is what other libraries call momentum."""

    one_round: ClassVar[bool] = False
    """Only methods of one round are served: ``compensate`` and ``update`` refuse."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class with its own implementation works on tensors and keeps something, until it declares otherwise itself.
        if overrides(cls, ("encode", "rollback", "update", "begin", "finish"), "takes_pieces"):
            cls.takes_pieces = Memory.takes_pieces  # type: ignore[method-assign]
        if overrides(cls, ("encode", "encoded", "rollback", "buffers"), "keeps_nothing"):
            cls.keeps_nothing = False
        if overrides(cls, (*_METHODS, "buffers"), "plain"):
            cls.plain = False
        if overrides(cls, ("encode", "rollback"), "begin_or_undo"):
            # A memory that undoes more than its base must not inherit the launch that undoes what the base keeps.
            cls.begin_or_undo = Memory.begin_or_undo  # type: ignore[method-assign]
        if overrides(cls, ("compensate",), "compensate_each"):
            cls.compensate_each = Memory.compensate_each  # type: ignore[method-assign]

    def takes_pieces(self, scale: float) -> bool:
        """Return whether ``encode`` with this scale, ``rollback``, ``update`` and ``begin`` take
        ``gradwire.kernels.Pieces``.

        Then ``rollback`` has a third argument, ``when``: bool, one element, or None for always. A subclass that does
        any of these in its own way says it anew.
        """
        return False

    @property
    def form(self) -> StoredForm:
        """The form in which the tensors of ``buffers`` are stored."""
        return FLOAT32

    @property
    def dense(self) -> Memory | None:
        """The memory for parameters that travel uncompressed; None if there is nothing to do for them.

        Its ``buffers`` are among this memory's, so that a parameter may begin dense and go on compressed.
        """
        return None

    @abstractmethod
    def encode(
        self,
        compressor: Compressor,
        grad: Tensor,
        kept: Mapping[str, Tensor],
        payload: Payload,
        state: State,
        key: Key,
        status: Tensor,
        scale: float = 1.0,
    ) -> None:
        """Compensate ``grad``, write the payload of ``scale`` times the result, and keep the rest.

        Args:
            grad: overwritten with whatever ``rollback`` needs.
            kept: one view for each of ``buffers``, in the shape of ``grad`` where numbers are stored.
            status: int32 of one element; bit 0 is set when a compensated value is not finite.
            scale: 1 except for summable payloads, which are divided by the world size before they are summed.
        """

    def encoded(
        self, compressor: Compressor, x: Tensor, payload: Payload, state: State, key: Key, scale: float
    ) -> None:
        """Write the payload of ``scale * x``; a scale of 1 costs no multiplication."""
        if scale == 1.0:
            compressor.encode(x, payload, state, key)
        else:
            capabilities.encode_scaled(compressor, x, scale, payload, state, key)

    @abstractmethod
    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        """Restore ``kept`` from the values that ``encode`` left in ``grad``."""

    @abstractmethod
    def compensate(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        """Replace ``grad`` by the compensated gradient; ``kept`` stays. For methods of several rounds, which then call
        ``update``.
        """

    def compensate_each(self, grads: Sequence[Tensor], kept: Sequence[Mapping[str, Tensor]]) -> None:
        """Call ``compensate`` for every tensor of a bucket."""
        for grad, each in zip(grads, kept, strict=True):
            self.compensate(grad, each)

    @abstractmethod
    def update(self, unsent: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        """Keep ``unsent``, the compensated gradient minus its decoded payload, unless ``bad`` (bool, one element)."""

    def returned(self, grad: Tensor, kept: Mapping[str, Tensor], places: Tensor, values: Tensor) -> None:
        """Keep the values of a payload of exact entries again, because nobody received it.

        A strategy that may drop entries of payloads refuses a balanced memory without this.

        Args:
            grad: gradient as ``encode`` left it.
            kept: kept tensors as ``encode`` left them.
            places: int64, of the flattened gradient.
            values: float32, what the payload said there.
        """
        return

    def begin(self, out: Tensor, kept: Mapping[str, Tensor]) -> None:
        """Prepare ``out``, to which the decoded payloads of all ranks will be added."""
        kernels.fill_where(out.view(-1), 0.0)

    def begin_or_undo(self, out: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        """Do ``rollback`` if ``bad``, and then ``begin``, with NaN if ``bad``: where nothing may wait for the flag.

        Only of memories that take pieces, and do not keep the mean.

        Args:
            out: gradient as ``encode`` left it.
            kept: kept tensors as ``encode`` left them.
            bad: bool, one element.
        """
        self.rollback(out, kept, bad)  # type: ignore[call-arg]
        kernels.begin_sum(out.view(-1), None, bad)

    def finish(self, out: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        """Observe the result in ``out``; ``kept`` must not change if ``bad`` (bool, one element)."""
        return

    def to_config(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values."""
        return registry.to_config(self)


def check_memory(compressor: Compressor, memory: Memory, *, force: bool) -> None:
    """Refuse a memory with which the method would be a different one, lose unsent values, or diverge.

    Args:
        force: the user knows; what can never work is refused in any case.

    Raises:
        ConfigError: the memory does not suit the method; the message names the remedy.
    """
    check_rounds(memory, compressor)
    own = capabilities.memory(compressor)
    alike = own in (None, memory.name) or (memory.forgets and registry.find("memory", str(own)).forgets)
    if not alike and not force:
        raise ConfigError(
            f"memory {memory.name!r} makes another method of {compressor.name!r}, which is defined with memory "
            f"{own!r}: leave memory out, or say force=True"
        )
    if capabilities.votes(compressor) and memory.keeps_mean:
        raise ConfigError(
            f"memory {memory.name!r} keeps the mean that arrives, but {compressor!r} turns it into signs: use a "
            "method, or a form of this one, that does not"
        )
    refused = memory.forgets and own != memory.name
    if compressor.feedback == "built-in" and refused:
        raise ConfigError(
            f"memory {memory.name!r} loses gradients: the residual is part of {compressor.name!r}; use "
            "memory='residual'"
        )
    if compressor.feedback == "required" and refused and not force:
        raise ConfigError(
            f"memory {memory.name!r} loses for good what {compressor!r} does not send, and the method needs error "
            "feedback: leave memory out, or say force=True"
        )
    if compressor.feedback == "unsafe" and not memory.forgets and own != memory.name and not force:
        raise ConfigError(
            f"memory {memory.name!r} would grow without bound with {compressor!r}, whose noise is larger than its "
            f"signal: with error feedback use {capabilities.bounded(compressor)}; or memory='none', or force=True"
        )
