"""The interface of every store: MXNet 1.9's ``mx.kv``, over torch tensors.

The calls of the public API check and regroup their arguments here, once; a store implements the verbs on single keys.
Where MXNet hangs, corrupts or loses something, a store does what was meant or raises at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Protocol, TypeAlias

import torch
from torch import Tensor

from gradwire._short_traceback import ShortTracebacks
from gradwire.engine.adaptive import STORE, trouble_of
from gradwire.errors import ConfigError, require
from gradwire.kernels.native import warn_without_kernels
from gradwire.kvstore.protocol.compression import OFF, Compression, parse
from gradwire.kvstore.protocol.keys import Pairs, StoreKey, found, grouped
from gradwire.kvstore.protocol.merge import row_sparse
from gradwire.kvstore.protocol.sender import flat_gradient, refuse_nonfinite
from gradwire.kvstore.protocol.updater import OptimizerConfig

__all__ = ["KVStore", "UpdaterFunction", "check_priority"]

UpdaterFunction: TypeAlias = Callable[[StoreKey, Tensor, Tensor], None]
"""``updater(key, merged, stored)`` changes ``stored`` in place."""


class KeyForm(Protocol):
    """The form of a key's value, as a store knows it."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def sparse(self) -> bool: ...


class KVStore(ShortTracebacks, ABC):
    """Keys and tensors, shared by those who push gradients to them and pull values from them.

    Without an optimizer or updater a push replaces the value by the sum of what was pushed.
    """

    compresses: ClassVar[bool] = True

    _keys: Mapping[StoreKey, KeyForm]
    """The keys that were initialised."""

    def __init__(self, type: str) -> None:  # noqa: A002
        self._type = type
        self._strings: bool | None = None
        self.compression: Compression = OFF
        self._optimizer: OptimizerConfig | None = None
        self._forced = False
        self._warned: set[bool] = set()
        """Warnings that were given: True: of harm, False: of noise."""

    @property
    def type(self) -> str:
        """The type that was given to ``create``."""
        return self._type

    @property
    def rank(self) -> int:
        """The rank of this worker, from 0."""
        return 0

    @property
    def num_workers(self) -> int:
        """The number of workers that share the store."""
        return 1

    @property
    def updates(self) -> bool:
        """Return whether an optimizer or a function, of which this worker knows, updates the values by what is pushed;
        else pushes replace them.
        """
        return False

    def is_capable(self, capability: str) -> bool:
        """Return whether the store can do something: "optimizer" is to keep weights and update them.

        Raises:
            ConfigError: another capability.
        """
        require(capability == "optimizer", "capability", "'optimizer'", capability)
        return True

    def init(self, key: Any, value: Any) -> None:
        """Initialise keys with their first values, which are never compressed.

        Args:
            key: an int or a str, or a list of either.
            value: a tensor for each key, dense or row-sparse (COO with one sparse dimension).

        Raises:
            ConfigError: a key that has a value, or is of another kind (int, str) than those before it.

        Example:
            >>> from gradwire import kvstore
            >>> kv, out = kvstore.create("local"), torch.zeros(2)
            >>> kv.init("w", torch.ones(2))
            >>> kv.pull("w", out)
            >>> out
            tensor([1., 1.])
        """
        pairs = grouped(key, value, "value")
        for each, tensors in pairs:
            self._check_kind(each)
            require(len(tensors) == 1, f"value of key {each!r}", "one tensor", f"{len(tensors)} of them")
            if each in self._keys:
                raise ConfigError(
                    f"key {each!r} must be initialised once: it has a value already, which a push changes"
                )
        # Only after all were checked, so that a call that raises has initialised none.
        for each, tensors in pairs:
            self._init(each, flat_gradient(tensors[0].detach()))

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Send gradients; those of all senders for a key are summed.

        Args:
            key: one or several that were given a value by ``init``.
            value: a tensor for each key, or a list of them: each place in the list is a sender with its own residual.
            priority: larger ones are served first where keys wait for each other.

        Raises:
            ConfigError: an unknown key, another shape than the key's, or a NaN where it would be compressed.
        """
        check_priority(priority)
        self._push_all(self._gradients(key, value), priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy values out of the store.

        Args:
            key: one or several.
            out: a tensor for each key, or a list of them, which are overwritten.
            priority: an integer, as for ``push``.
            ignore_sparse: leave keys alone whose value is row-sparse, as MXNet does; False pulls them too.

        Raises:
            ConfigError: an unknown key, or a tensor of another shape.
        """
        check_priority(priority)
        self._pull_all(self._outputs(key, out, ignore_sparse), priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Do ``push`` and then ``pull``, in one exchange if there is a network.

        Args:
            key: one or several.
            value: gradients, as for ``push``.
            out: tensors to overwrite, as for ``pull``; None: the pushed tensors are overwritten with the result.
            priority: an integer, as for ``push``.
        """
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority, ignore_sparse=False)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Do ``init`` and then ``pull``: every worker gets worker 0's value, uncompressed."""
        self.init(key, value)
        self.pull(key, out, priority, ignore_sparse=False)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copy some rows of values out of the store.

        Args:
            key: one or several.
            out: a tensor for each key, or a list of them; a sparse one gets the rows, a dense one zeros elsewhere.
            priority: an integer, as for ``push``.
            row_ids: an integer tensor for each of ``out``, in any order, repeated or not; one is for all of them.

        Raises:
            ConfigError: an unknown key, a row that does not exist, or no ``row_ids``.
        """
        check_priority(priority)
        require(out is not None, "out", "a tensor for each key", out)
        require(row_ids is not None, "row_ids", "an integer tensor for each of out", row_ids)
        ids = grouped(key, row_ids, "row_ids")
        for (each, tensors), (_, rows) in zip(grouped(key, out, "out"), ids, strict=True):
            fits = len(rows) in (1, len(tensors))
            require(fits, f"row_ids of key {each!r}", f"one tensor or {len(tensors)}", len(rows))
            self._check_shapes(each, tensors, "out")
            for tensor, mine in zip(tensors, rows * len(tensors) if len(rows) == 1 else rows, strict=True):
                wanted = self._checked_rows(each, mine)
                with torch.no_grad():
                    values = self._rows(each, wanted, priority)
                    if tensor.is_sparse:
                        tensor.copy_(row_sparse(wanted.to(values.device), values, tensor.shape))
                    else:
                        tensor.zero_()[wanted.to(tensor.device)] = values.to(tensor.device, tensor.dtype)

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Compress pushes from now on; residuals of keys that were pushed before stay.

        With "pull" the answers are compressed too: of values V that an optimizer updates, their change since what the
        workers hold, p = Q(V - R), R = R + D(p); of values that each push replaces, p = Q(V + E), R = D(p),
        E = V + E - R. A pull gives R, the same bits to all workers, and what it did not deliver is in the next.

        Args:
            compression_params: ``{"type": "2bit", "threshold": 0.5}``, "1bit", any method of ``gradwire methods`` with
                its parameters, or ``{"type": "none"}``; beside these ``"pull"``, a dictionary of the same form.

        Raises:
            ConfigError: an unknown key or a bad value; a method for ``"pull"`` that error feedback does not hold for;
                or a store of a type that adds up on the CPU ("local"), which compresses answers only.

        Example:
            >>> from gradwire import kvstore
            >>> kv, out = kvstore.create("device"), torch.zeros(3)
            >>> kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
            >>> kv.init(3, torch.zeros(3))
            >>> kv.push(3, [torch.tensor([0.6, 0.3, 0.0]), torch.tensor([0.7, 0.3, 0.0])])
            >>> kv.pull(3, out)
            >>> out
            tensor([1., 0., 0.])
            >>> kv.set_gradient_compression({"type": "none", "pull": {"type": "topk", "ratio": 0.3}})
            >>> for _ in range(2):
            ...     kv.push(3, torch.tensor([3.0, 2.0, 0.0]))
            ...     kv.pull(3, out)
            ...     print(out)  # of the second sum, [3, 2, 0], and the 2 that was left, the 4 is larger
            tensor([3., 0., 0.])
            tensor([0., 4., 0.])
        """
        compression = parse(compression_params)
        if not self.compresses and compression.push is not None:
            raise ConfigError(
                f"a store of type {self.type!r} does not compress what is pushed: create('device') or a dist type does"
            )
        self._set_compression(compression)
        self.compression, self._forced = compression, bool(compression_params.get("force"))
        self._judge()
        if compression.push is not None or compression.pull is not None:
            warn_without_kernels()

    def set_optimizer(self, optimizer: str | OptimizerConfig, **numbers: Any) -> None:
        """Let the store update its values by an optimizer, whose state it keeps.

        Named a second time, the same optimizer goes on with its state and the new numbers.

        Args:
            optimizer: "sgd", "adam", ... or "test"; or an ``OptimizerConfig``.
            numbers: parameters of the optimizer, such as ``learning_rate=0.1, momentum=0.9``.

        Raises:
            ConfigError: an unknown name or parameter.
        """
        if isinstance(optimizer, OptimizerConfig):
            if numbers:
                raise ConfigError(f"an OptimizerConfig has its numbers in it: put {numbers} there")
            config = optimizer
        else:
            config = OptimizerConfig(optimizer, numbers)
        self._set_optimizer(config)
        self.applied_by(config)

    def applied_by(self, optimizer: OptimizerConfig) -> None:
        """Declare which optimizer applies the pulled values, here or elsewhere; a warning says if
        the method harms it.
        """
        self._optimizer = optimizer
        self._judge()

    def _judge(self) -> None:
        """Warn on worker 0, once of a method that harms an optimizer that divides by recent gradients, and once of one
        that adds much noise.
        """
        push, memory, config = self.compression.push, self.compression.memory, self._optimizer
        if self._forced or config is None or push is None or memory is None or not config.adaptive:
            return
        trouble = trouble_of(push, memory)
        if trouble is not None and trouble.harmful not in self._warned:
            self._warned.add(trouble.harmful)
            if self.rank == 0:
                trouble.warn(config.name, STORE)

    @abstractmethod
    def set_updater(self, updater: UpdaterFunction) -> None:
        """Let a function of this process update the values: ``updater(key, merged, stored)``.

        Raises:
            ConfigError: the values are elsewhere, and functions do not travel.
        """

    @abstractmethod
    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's state to a safetensors file.

        Args:
            fname: path of the file, which is replaced at once when all is written.
            dump_optimizer: true: write the optimizer's name and numbers, too.
        """

    @abstractmethod
    def load_optimizer_states(self, fname: str) -> None:
        """Load the file of ``save_optimizer_states``."""

    def version(self, key: StoreKey) -> int:
        """The number of a key's steps before this worker came, and that it has pushed since: where to continue.

        Args:
            key: key that was given a value by ``init``; a store of this process counts none, as it ends with it.
        """
        return 0

    def barrier(self) -> None:
        """Wait until every worker is here and everything pushed before has been applied."""
        return

    def _barrier(self) -> None:
        """MXNet's name of ``barrier``."""
        self.barrier()

    def _set_updater(self, updater: UpdaterFunction) -> None:
        """MXNet's name of ``set_updater``."""
        self.set_updater(updater)

    def get_num_dead_node(self, node_id: int = 0, timeout: float = 60.0) -> int:
        """The number of workers and servers that did not answer for ``timeout`` seconds."""
        return 0

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ConfigError(
            "a store cannot be copied or pickled: create another one, and init its keys from pulled values"
        )

    @abstractmethod
    def _init(self, key: StoreKey, value: Tensor) -> None: ...

    @abstractmethod
    def _push_all(self, pairs: Sequence[tuple[StoreKey, Sequence[Tensor]]], priority: int) -> None: ...

    @abstractmethod
    def _pull_all(self, pairs: Sequence[tuple[StoreKey, Sequence[Tensor]]], priority: int) -> None: ...

    @abstractmethod
    def _rows(self, key: StoreKey, rows: Tensor, priority: int) -> Tensor:
        """Get some rows of a value, on the device where they are."""

    @abstractmethod
    def _set_compression(self, compression: Compression) -> None: ...

    @abstractmethod
    def _set_optimizer(self, config: OptimizerConfig) -> None: ...

    def _gradients(self, key: Any, value: Any) -> Pairs:
        """Group the arguments of a push by key, and check them."""
        pairs = [(each, [flat_gradient(t.detach()) for t in tensors]) for each, tensors in grouped(key, value, "value")]
        for each, tensors in pairs:
            self._check_push(each, tensors)
        return pairs

    def _outputs(self, key: Any, out: Any, ignore_sparse: bool) -> Pairs:
        """Group the arguments of a pull by key, and check them."""
        require(out is not None, "out", "a tensor for each key", out)
        pairs = [
            (each, outs)
            for each, outs in grouped(key, out, "out")
            if not (ignore_sparse and found(self._keys, each).sparse)
        ]
        for each, outs in pairs:
            self._check_shapes(each, outs, "out")
        return pairs

    def _check_push(self, key: StoreKey, grads: Sequence[Tensor]) -> None:
        self._check_shapes(key, grads, "value")
        if self.compression.push is not None:
            for grad in grads:
                require(
                    grad.is_floating_point(), f"value of key {key!r}", "floating-point to be compressed", grad.dtype
                )
                refuse_nonfinite(key, grad.values() if grad.is_sparse else grad)

    def _check_shapes(self, key: StoreKey, tensors: Sequence[Tensor], name: str) -> None:
        shape = found(self._keys, key).shape
        for tensor in tensors:
            require(tensor.shape == shape, f"{name} of key {key!r}", f"of shape {tuple(shape)}", tuple(tensor.shape))

    def _checked_rows(self, key: StoreKey, rows: Tensor) -> Tensor:
        integers = not (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool)
        require(integers and rows.dim() <= 1, f"row_ids of key {key!r}", "a 1-D integer tensor", rows.dtype)
        unique: Tensor = torch.unique(rows.reshape(-1).long())
        shape = found(self._keys, key).shape
        count = shape[0] if shape else 0
        inside = not unique.numel() or (int(unique[0]) >= 0 and int(unique[-1]) < count)
        require(inside, f"row_ids of key {key!r}", f"in [0, {count})", rows.tolist()[:10])
        return unique

    def _check_kind(self, key: StoreKey) -> None:
        string = isinstance(key, str)
        self._strings = string if self._strings is None else self._strings
        require(string is self._strings, "key", f"{'a str' if self._strings else 'an int'} like those before it", key)


def check_priority(priority: Any) -> None:
    """Refuse a priority that is not an integer.

    Raises:
        ConfigError: the priority is no integer.
    """
    require(isinstance(priority, int), "priority", "an int", priority)
