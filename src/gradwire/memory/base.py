"""Contract of a memory, which decides what becomes of the part of a gradient that was not sent.

Invariants:
    * In the words of the GRACE survey, phi compensates the gradient, and psi keeps what its payload does not contain.
      ``encode`` does both in one call, so that a fused kernel can do them in one pass over memory; ``compensate`` and
      ``update`` are the halves.
    * What few memories need to say is in ``facts``: a class answers there by an attribute or a method of that name.
    * A memory is configuration only. The tensors that it keeps for each element are named by ``buffers``, have the
      layout of the parameter, and are stored as ``form`` says. The caller owns them, keyed by parameter name, and
      passes views.
    * Every ``encode`` with a ``status`` can be undone: until the caller writes into ``grad`` again, ``rollback``
      restores the kept tensors bit for bit. So a step with a NaN on one rank leaves the memories of all ranks as they
      were.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError
from gradwire.kernels.stored import FLOAT32, StoredForm
from gradwire.memory import facts
from gradwire.vocabulary import Configuration, Key, Payload, State

__all__ = ["Memory", "OneRoundMemory", "check_memory", "check_rounds", "default_memory"]


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
    if facts.one_round(memory) and capabilities.in_rounds(compressor):
        raise ConfigError(
            f"memory {memory.name!r} serves methods of one round, because it reads from one payload what was sent, but "
            f"{compressor.name!r} is averaged in rounds between the workers: use memory='residual'"
        )


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
    sent, which only methods that are right on average, or nearly exact, can have."""

    late: ClassVar[bool] = False
    """True: what was not sent goes in a later step, which optimizers that divide by past gradients do not forgive."""

    forgets: ClassVar[bool] = False
    """True: the gradient itself is compressed, and what was not sent of it is lost: one such memory may take the place
    of another."""

    @property
    def form(self) -> StoredForm:
        """The form in which the tensors of ``buffers`` are stored."""
        return FLOAT32

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

    @abstractmethod
    def update(self, unsent: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        """Keep ``unsent``, the compensated gradient minus its decoded payload, unless ``bad`` (bool, one element)."""

    def to_config(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values."""
        return registry.to_config(self)


class OneRoundMemory(Memory):
    """Base of the memories that read from one payload what was sent, so that they serve methods of one round alone."""

    one_round = True

    def compensate(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        """Refuse, because nobody has the payload of several rounds before it is averaged.

        Raises:
            ConfigError: every call raises it.
        """
        raise ConfigError(f"memory {self.name!r} serves methods of one round: use memory='residual'")

    def update(self, unsent: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        self.compensate(unsent, kept)


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
    if capabilities.votes(compressor) and facts.keeps_mean(memory):
        raise ConfigError(
            f"memory {memory.name!r} keeps the mean that arrives, but {compressor!r} turns it into signs: use a "
            "method, or a form of this one, that does not"
        )
    loses = memory.forgets or not memory.balanced
    refused = loses and own != memory.name
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
    if compressor.feedback == "unsafe" and not loses and own != memory.name and not force:
        raise ConfigError(
            f"memory {memory.name!r} would grow without bound with {compressor!r}, whose noise is larger than its "
            f"signal: with error feedback use {capabilities.bounded(compressor)}; or memory='none', or force=True"
        )
    # Last, so that no remedy named there is refused by a check above.
    if not force:
        facts.check_compressor(memory, compressor)
