"""Adapter that runs a researcher's ``SimpleCompressor`` under the full contract.

Invariants:
    * The payload of zeros, which ``compress`` is asked for once, shows the sizes and dtypes of a payload of that shape.
      A later call that gives others is refused.
    * The user's code always gets a copy, so nothing that it does can change a gradient, a residual or a message.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor

from gradwire.compressors.base import Compressor, Feedback
from gradwire.compressors.simple import SimpleCompressor
from gradwire.errors import ConfigError, WireError, is_float32, is_int, require
from gradwire.vocabulary import ALIGNMENT, Field, Key, Layout, Payload, State

__all__ = ["Adapted"]

_FULL_CONTRACT = "write a gradwire.Compressor with fixed_size = False instead"

Form = tuple[torch.dtype, torch.Size]

SUMMABLE = (torch.float32, torch.float16, torch.bfloat16)

_lock = threading.RLock()
"""Held by the thread that calls a researcher's code, until what it gave is copied or added: one method may serve two
models, each of which adapts it anew and exchanges in a thread of its own."""


@dataclass(frozen=True)
class Probe:
    """The form of the payload that ``compress`` returned for zeros of one shape."""

    forms: tuple[Form, ...]
    ctx: Any

    @property
    def order(self) -> list[int]:
        """The order of the items by decreasing size, so that no gap is needed before any field."""
        return sorted(range(len(self.forms)), key=lambda i: -self.forms[i][0].itemsize)


@dataclass(frozen=True, eq=False)
class Adapted(Compressor):
    """A compressor of the contract that runs ``method``.

    Args:
        method: method whose ``compress`` and ``decompress`` are called, by one thread at a time.
        config: name and parameters from which it was built; None: the name of its class, and its attributes.

    Raises:
        ConfigError: the method declares what it cannot keep.
    """

    method: SimpleCompressor
    config: Mapping[str, Any] | None = field(default=None, repr=False)
    _probes: dict[tuple[torch.Size, torch.device], Probe] = field(init=False, repr=False, default_factory=dict)
    _own_ctx: dict[int, Any] = field(init=False, repr=False, default_factory=dict)
    _config: dict[str, Any] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        method = self.method
        require(isinstance(method, SimpleCompressor), "Adapted.method", "a SimpleCompressor", method)
        cls = type(method)
        require(is_int(method.alignment, 0), f"{cls.__name__}.alignment", "an integer >= 0", method.alignment)
        known = get_args(Feedback)
        require(method.feedback in known, f"{cls.__name__}.feedback", f"one of {', '.join(known)}", method.feedback)
        room = is_float32(method.headroom) and method.headroom >= 1
        require(room, f"{cls.__name__}.headroom", "a finite number >= 1 in float32", method.headroom)
        if not method.tensors_size_are_same:
            raise ConfigError(f"{cls.__name__}.tensors_size_are_same must be True: {_FULL_CONTRACT}")
        if method.summable and not method.ctx_from_shape:
            raise ConfigError(f"{cls.__name__} cannot be summable with ctx_from_shape = False: a sum has no one ctx")
        if method.summable and self._overrides("aggregate"):
            raise ConfigError(
                f"{cls.__name__} cannot be summable with an aggregate of its own, which a sum of tensors never calls: "
                "leave out one of the two"
            )
        declared = {
            "name": self.config["name"] if self.config else f"{cls.__module__}:{cls.__qualname__}",
            "reference": cls.__doc__ or cls.__qualname__,
            "unbiased": method.unbiased,
            "random": method.random,
            "summable": method.summable,
            "headroom": float(method.headroom),
            "average": method.average and not self._overrides("aggregate"),
            "memory": "none" if self._overrides("memory_compensate", "memory_update") else None,
        }
        for key, value in declared.items():
            object.__setattr__(self, key, value)
        # The attributes may count steps later on; ranks compare them as they were at the start.
        self._config.update(self.config or method.config(), name=declared["name"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Adapted) and self.method is other.method

    def __hash__(self) -> int:
        return id(self.method)

    def __reduce__(self) -> tuple[type[Adapted], tuple[SimpleCompressor, Mapping[str, Any] | None]]:
        return Adapted, (self.method, self.config)

    def same_method(self, other: Compressor) -> bool:
        return isinstance(other, Adapted) and type(self.method) is type(other.method)

    @property
    def feedback(self) -> Feedback:
        return self.method.feedback

    @property
    def fine(self) -> bool:
        return self.method.fine

    @property
    def alignment(self) -> int:
        """The alignment, which is 0 if the method keeps state or a ctx: a shard has neither the whole tensor's state
        nor its ctx.
        """
        return 0 if self._has_state or not self.method.ctx_from_shape else self.method.alignment

    def layout(self, shape: Sequence[int]) -> Layout:
        probe = self._probe(torch.Size(max(1, size) for size in shape), torch.device("cpu"))
        fields = [] if self.method.ctx_from_shape else [Field("tensor", torch.int64, 1)]
        for i in probe.order:
            dtype, size = probe.forms[i]
            fields.append(Field(f"tensors[{i}]", stored(dtype), 0 if 0 in shape else size.numel()))
        return Layout(tuple(fields))

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        return self.method.init_state(torch.Size(shape), device or torch.device("cpu"))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        if x.numel() == 0:
            return
        probe = self._probe(x.shape, x.device)
        with _lock, torch.no_grad():
            tensors, ctx = self._compress(x, state, key)
            self._check(probe, forms_of(tensors), ctx, x.shape)
            if not self.method.ctx_from_shape:
                payload[0].fill_(key.tensor)
                self._own_ctx[key.tensor] = ctx
            # The lock is still held, because the tensors may be buffers into which the next call writes.
            for i, view in zip(reversed(probe.order), reversed(payload), strict=False):
                view.copy_(tensors[i].reshape(-1))

    def encode_scaled(self, x: Tensor, scale: float, payload: Payload, state: State, key: Key) -> None:
        """Encode; a method with state gets the unscaled gradient, because its state stays in the gradient's unit."""
        before = 1.0 if self._has_state else scale
        self.encode(x if before == 1.0 else x * before, payload, state, key)
        if before != scale:
            payload[0].mul_(scale)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        if self._overrides("memory_compensate", "memory_update"):
            raise ConfigError(f"{self.name} has a memory of its own (memory_update): use memory='none' with it")
        super().encode_feedback(grad, residual, payload, state, key, status)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        if out.numel():
            with _lock:
                out.add_(self._decompress(payload, out.shape), alpha=scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        """Add the aggregate; the caller's ``scale`` contains the 1/W of a mean, which is taken out again without
        ``average``.
        """
        if out.numel() == 0:
            return
        world = payloads[0].shape[0]
        scale = scale if self.method.average else scale * world
        rows = [tuple(row[rank] for row in payloads) for rank in range(world)]
        if not self._overrides("aggregate"):
            for row in rows:
                self.add_decoded(row, out, scale)
            return
        with _lock, torch.no_grad():
            # Copies, because all may be one buffer of the method.
            total = self.method.aggregate([self._decompress(row, out.shape).clone() for row in rows])
            out.add_(self._dense(total, out.shape, "aggregate"), alpha=scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Let the method decompress the payload as a check, because only it knows which bytes it can decompress."""
        try:
            if 0 not in shape:
                self._decompress(payload, torch.Size(shape))
        except Exception as error:
            raise WireError(f"{self.name}.decompress refuses the payload: {error}") from error

    def to_config(self) -> dict[str, Any]:
        return dict(self._config)

    @property
    def _has_state(self) -> bool:
        return self._overrides("init_state", "memory_compensate", "memory_update")

    def _overrides(self, *names: str) -> bool:
        # A researcher says by writing a method that it is there; the contract itself has declared properties for this.
        return any(getattr(type(self.method), name) is not getattr(SimpleCompressor, name) for name in names)

    def _probe(self, shape: torch.Size, device: torch.device) -> Probe:
        """Learn the form of a payload once for each shape, from a copy of the method whose state is thrown away."""
        if (shape, device) not in self._probes:
            with _lock:  # Another thread must not change what is copied.
                tried = self._try(self._copy(), torch.zeros(shape, dtype=torch.float32, device=device))
            tensors, ctx = pair(self.name, tried)
            forms = forms_of(tensors)
            if self.method.summable and (len(forms) != 1 or forms[0][0] not in SUMMABLE):
                raise ConfigError(
                    f"{self.name} is summable, so compress must give one tensor of 16- or 32-bit floats, got {forms}"
                )
            self._probes[shape, device] = Probe(forms, ctx)
        return self._probes[shape, device]

    def _copy(self) -> SimpleCompressor:
        try:
            return copy.deepcopy(self.method, {id(self.method.state): defaultdict(dict)})
        except Exception as error:
            raise ConfigError(f"{self.name} must allow copy.deepcopy, to be tried on zeros: {error}") from error

    def _try(self, method: SimpleCompressor, zeros: Tensor) -> Any:
        try:
            method.generator = torch.Generator(zeros.device).manual_seed(0)
            method.state["probe"] = method.init_state(zeros.shape, zeros.device)
            with torch.no_grad():
                return method.compress(zeros, "probe")
        except Exception as error:
            raise ConfigError(f"{self.name}.compress fails on zeros of shape {tuple(zeros.shape)}: {error}") from error

    def _compress(self, x: Tensor, state: State, key: Key) -> tuple[Sequence[Tensor], Any]:
        """Compensate, compress and update; a step that is not finite leaves the method's state unchanged."""
        method, name = self.method, label(key)
        method.generator = torch.Generator(x.device).manual_seed(seed_of(key))
        method.state[name] = state
        before = {slot: tensor.clone() for slot, tensor in state.items()}
        x = method.memory_compensate(x.clone(), name)
        tensors, ctx = pair(self.name, method.compress(x, name))
        method.memory_update(x, name, method, [tensor.clone() for tensor in tensors], ctx)
        if shapes(before) != shapes(state):
            raise ConfigError(
                f"{self.name}.state[name] was {shapes(before)} and became {shapes(state)}: return every key from "
                "init_state in its final shape, so that it survives new buckets"
            )
        if before and not bool(torch.isfinite(x).all()):
            state.update(before)
        return tensors, ctx

    def _check(self, probe: Probe, forms: tuple[Form, ...], ctx: Any, shape: torch.Size) -> None:
        if forms != probe.forms:
            raise ConfigError(
                f"{self.name}.compress gave {forms} for shape {tuple(shape)}, but {probe.forms} for zeros of that "
                f"shape: pad the tensors to sizes that follow from the shape, or {_FULL_CONTRACT}"
            )
        if self.method.ctx_from_shape and not same(ctx, probe.ctx):
            raise ConfigError(
                f"{self.name}.compress gave another ctx than for zeros of shape {tuple(shape)}: send what depends on "
                "the values in tensors, or declare ctx_from_shape = False if every rank's own ctx will do"
            )

    def _decompress(self, payload: Payload, shape: torch.Size) -> Tensor:
        probe = self._probe(shape, payload[0].device)
        views = dict(zip(reversed(probe.order), reversed(payload), strict=False))
        tensors = [views[i].to(dtype, copy=True).view(size) for i, (dtype, size) in enumerate(probe.forms)]
        ctx = probe.ctx if self.method.ctx_from_shape else self._recall(payload[0])
        with _lock, torch.no_grad():
            return self._dense(self.method.decompress(tensors, ctx), shape, "decompress")

    def _recall(self, tensor: Tensor) -> Any:
        if int(tensor) not in self._own_ctx:
            raise ConfigError(
                f"{self.name} has ctx_from_shape = False, but this rank never compressed the tensor of the payload"
            )
        return self._own_ctx[int(tensor)]

    def _dense(self, out: Any, shape: torch.Size, function: str) -> Tensor:
        if not isinstance(out, Tensor) or out.numel() != shape.numel():
            given = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(f"{self.name}.{function} must give a tensor of shape {tuple(shape)}, got {given}")
        return out.to(torch.float32).reshape(shape)


def pair(name: str, result: Any) -> tuple[Sequence[Tensor], Any]:
    """Return the result of ``compress`` if it is a pair of tensors and ctx."""
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], list | tuple):
        raise ConfigError(f"{name}.compress must return ([tensor, ...], ctx), got {type(result).__name__}")
    if not result[0]:
        raise ConfigError(f"{name}.compress must return at least one tensor")
    for tensor in result[0]:
        plain = isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_quantized
        if not plain or tensor.dtype.itemsize > ALIGNMENT:
            given = f"{tensor.layout} {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ConfigError(
                f"{name}.compress must give dense tensors of at most {8 * ALIGNMENT} bits an item, got {given}"
            )
    return result


def forms_of(tensors: Sequence[Tensor]) -> tuple[Form, ...]:
    return tuple((tensor.dtype, tensor.shape) for tensor in tensors)


def shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {key: tuple(tensor.shape) for key, tensor in sorted(state.items())}


def stored(dtype: torch.dtype) -> torch.dtype:
    """Convert a bool to a byte, because one that came from outside could be neither 0 nor 1."""
    return torch.uint8 if dtype is torch.bool else dtype


def same(a: Any, b: Any) -> bool:
    """Return whether two ctx are equal."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, list | tuple) and type(a) is type(b):
        return len(a) == len(b) and all(map(same, a, b))
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception as error:
        allowed = "None, numbers, strings, tensors, and lists or tuples of them"
        raise ConfigError(f"ctx must be made of {allowed}, got {type(a).__name__}, which cannot be compared") from error


def label(key: Key) -> str:
    """The ``name`` that the method sees: a shard's owner compresses its mean under another one."""
    return f"{key.tensor:016x}" + (f"/{key.phase}" if key.phase else "")


def seed_of(key: Key) -> int:
    text = f"{key.stream()}/{key.step}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
