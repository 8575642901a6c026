"""The vocabulary shared by compressors, memories and strategies.

A payload is a tuple of typed tensors, all of them views into one byte buffer. A ``Layout`` says which, from
configuration and shape alone, so every rank of a group derives the same one and no header travels inside a group.
A second, leading dimension on the buffer (one row for each rank) gives the same views with that dimension in front.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache, update_wrapper, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor

from gradwire._short_traceback import short_traceback
from gradwire.errors import as_python
from gradwire.notices import log

__all__ = [
    "ALIGNMENT",
    "Configuration",
    "Field",
    "Key",
    "Layout",
    "Payload",
    "State",
    "align",
    "capability",
    "tensor_id",
]

Payload: TypeAlias = tuple[Tensor, ...]
State: TypeAlias = dict[str, Tensor]

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")

ALIGNMENT = 8
"""Bytes to which a payload is padded inside a message: the largest item size a field may have."""


def align(offset: int, to: int = ALIGNMENT) -> int:
    """The smallest multiple of ``to`` that is not below ``offset``."""
    return -(-offset // to) * to


class Capability(Generic[S, P, T]):
    """A function that asks an object for what its class may declare, with a default for all others.

    The answer is the attribute, the property or the method of the function's name. ``default`` is the function itself,
    for a class that does something in its own way and leaves the rest to it.

    Args:
        default: answer where nothing is declared.
        of: methods that the answer describes. It no longer holds for a class that writes one of these anew and does
            not repeat the answer; the log says so, once for each class.
    """

    def __init__(self, default: Callable[Concatenate[S, P], T], of: Collection[str]) -> None:
        self.default, self.of, self.name = default, frozenset(of), default.__name__
        self._holds: dict[type, bool] = {}
        update_wrapper(self, default)

    def __reduce__(self) -> str:
        # Pickled by name, as a function is.
        return self.default.__qualname__

    def __call__(self, subject: S, *args: P.args, **kwargs: P.kwargs) -> T:
        if not self.declared(subject):
            return self.default(subject, *args, **kwargs)
        own: Any = getattr(subject, self.name)
        answer: T = own(*args, **kwargs) if callable(own) else own
        return answer

    def declared(self, subject: S) -> bool:
        """Return whether the object has an answer of its own."""
        if self.name in getattr(subject, "__dict__", ()):
            return True
        # An answer that other methods of a subclass have made wrong is the most dangerous one, so it is never used. The
        # class is asked and not the object, for an error inside a property would look like no answer.
        return self._holds_for(subject if isinstance(subject, type) else type(subject))

    def _holds_for(self, cls: type) -> bool:
        if cls not in self._holds:
            self._holds[cls] = self._look_up(cls)
        return self._holds[cls]

    def _look_up(self, cls: type) -> bool:
        for each in cls.__mro__:
            if self.name in vars(each):
                return True
            if anew := self.of & vars(each).keys():
                told = f"{each.__qualname__} has its own {min(anew)}, so {self.name!r} of its base does not hold for it"
                # A default is no loss, so nothing is said where no base has an answer.
                if hasattr(cls, self.name):
                    log.info("%s: declare %s beside it if it does", told, self.name)
                return False
        return False


def capability(*, of: Collection[str] = ()) -> Callable[[Callable[Concatenate[S, P], T]], Capability[S, P, T]]:
    """Decorate a function whose first argument may answer itself: see ``Capability``.

    >>> @capability(of=["encode"])
    ... def fast(code):
    ...     return False
    >>> class Base:
    ...     fast = True
    ...     def encode(self): ...
    >>> class Own(Base):
    ...     def encode(self): ...
    >>> fast(object()), fast(Base()), fast(Own())
    (False, True, False)
    """
    return lambda default: Capability(default, of)


class Configuration:
    """Base of the frozen dataclasses that say how something is done: numpy's scalars in them become Python's.

    So equality, ``repr`` and the JSON round trip do not depend on where a number came from. It happens before the
    class's own ``__post_init__``, which checks the values.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__post_init__" in vars(cls):
            setattr(cls, "__post_init__", _converted_first(vars(cls)["__post_init__"]))  # noqa: B010

    def __post_init__(self) -> None:
        _convert(self)


def _converted_first(check: Callable[[Any], None]) -> Callable[[Any], None]:
    @short_traceback
    @wraps(check)
    def convert_and_check(self: Any) -> None:
        _convert(self)
        check(self)

    return convert_and_check


def _convert(configuration: Any) -> None:
    for each in fields(configuration) if is_dataclass(configuration) else ():
        if each.init:
            given = getattr(configuration, each.name)
            if (value := as_python(given)) is not given:
                object.__setattr__(configuration, each.name, value)


@dataclass(frozen=True)
class Field:
    """One typed run of a payload: ``count`` items of ``dtype``."""

    name: str
    dtype: torch.dtype
    count: int

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """The exact bytes of one payload: its fields in order, each aligned to its own item size.

    >>> layout = Layout((Field("norms", torch.float32, 2), Field("codes", torch.uint8, 5)))
    >>> layout.nbytes
    13
    >>> [view.dtype for view in layout.views(torch.zeros(13, dtype=torch.uint8))]
    [torch.float32, torch.uint8]
    """

    fields: tuple[Field, ...]

    def count(self, *names: str) -> int:
        """The number of items in the fields of these names.

        >>> Layout((Field("indices", torch.int16, 3), Field("values", torch.float32, 3))).count("indices", "counts")
        3
        """
        return sum(field.count for field in self.fields if field.name in names)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        offsets, end = [], 0
        for field in self.fields:
            offsets.append(align(end, field.dtype.itemsize))
            end = offsets[-1] + field.nbytes
        return tuple(offsets)

    @cached_property
    def nbytes(self) -> int:
        return self.offsets[-1] + self.fields[-1].nbytes if self.fields else 0

    def cut(self, used: int) -> Layout:
        """The layout of a payload of variable size whose last field has only ``used`` items.

        >>> Layout((Field("used", torch.int32, 1), Field("stream", torch.uint8, 100))).cut(3).nbytes
        7
        """
        return Layout((*self.fields[:-1], replace(self.fields[-1], count=used)))

    def views(self, buffer: Tensor) -> Payload:
        """Typed views of ``buffer``.

        Args:
            buffer: uint8, shape ``(nbytes,)`` or ``(ranks, nbytes)``; it must start at a multiple of ``ALIGNMENT``
                bytes of its storage.
        """
        return tuple(
            buffer[..., offset : offset + field.nbytes].view(field.dtype)
            for field, offset in zip(self.fields, self.offsets, strict=True)
        )


@dataclass(frozen=True)
class Key:
    """The name of one stream of random numbers; a compressor never touches a global generator.

    Streams of two ranks must differ where a method wants independent noise, and agree where it wants common
    indices: a compressor uses ``stream()`` for the first and ``stream(common=True)`` for the second.

    Args:
        seed: seed of the whole run, the same on all ranks.
        step: number of exchanges that went before.
        tensor: ``tensor_id`` of the parameter.
        phase: 0 where a worker compresses, 1 where a shard's owner compresses the sum again.
        rank: rank of the sender.
    """

    seed: int = 0
    step: int = 0
    tensor: int = 0
    phase: int = 0
    rank: int = 0

    def stream(self, *, common: bool = False) -> int:
        """The signed 64-bit Philox key; the step is not part of it, because it is the other half of the counter."""
        return _stream(self.seed, self.tensor, self.phase, -1 if common else self.rank)

    def of(self, tensor: int) -> Key:
        return Key(self.seed, self.step, tensor, self.phase, self.rank)


# Of as many tensors as a model may have: it is asked for in every step.
@lru_cache(maxsize=4096)
def _stream(seed: int, tensor: int, phase: int, rank: int) -> int:
    text = f"{seed}/{tensor}/{phase}/{rank}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def tensor_id(name: str) -> int:
    """A 63-bit number that depends only on the parameter's name, so it survives a rebuild of the buckets."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
