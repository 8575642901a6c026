"""Gluon's Trainer over torch parameters: the loop of an MXNet script keeps its shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from gradwire._short_traceback import ShortTracebacks
from gradwire.errors import ConfigError, GroupError, is_int, require
from gradwire.kvstore._create import create
from gradwire.kvstore.protocol.merge import add_dense
from gradwire.kvstore.protocol.optimizer_states import load_states, save_states
from gradwire.kvstore.protocol.store import KVStore
from gradwire.kvstore.protocol.updater import OptimizerConfig, Updater, updates_of

__all__ = ["Trainer"]

Copies: TypeAlias = nn.Parameter | Sequence[nn.Parameter]


class Trainer(ShortTracebacks):
    """A trainer that applies an optimizer to parameters, through a store.

    Args:
        params: parameters, or a mapping from names to them such as ``dict(model.named_parameters())``. In place of a
            parameter a list of its copies may stand, one for each device: each is a sender, and all get the new value.
        optimizer: "sgd", "adam", ..., or an ``OptimizerConfig``.
        optimizer_params: parameters of the optimizer, such as ``{"learning_rate": 0.1, "momentum": 0.9}``.
        kvstore: a store, its type, or None for none. MXNet leaves the store out on one device; here it is always used
            where compression is asked for, so that what was asked for happens.
        compression_params: argument of ``KVStore.set_gradient_compression``.
        update_on_kvstore: true: the store keeps the weights and updates them; false: it sums the gradients and each
            worker updates its own. None: true with a distributed store.

    Raises:
        ConfigError: a bad argument, or compression without a store.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.ones_(model.weight)
        >>> trainer = Trainer(model.parameters(), "sgd", {"learning_rate": 1.0}, compression_params={"type": "2bit"})
        >>> model(torch.tensor([[0.75, 0.25]])).sum().backward()
        >>> trainer.step(1)
        >>> model.weight.data
        tensor([[0.5000, 1.0000]])
    """

    def __init__(
        self,
        params: Iterable[Copies] | Mapping[str, Copies],
        optimizer: str | OptimizerConfig,
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: KVStore | str | None = "device",
        compression_params: Mapping[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
    ) -> None:
        given = list(params.values() if isinstance(params, Mapping) else params)
        self._params = [cast("list[nn.Parameter]", [c] if isinstance(c, Tensor) else list(c)) for c in given]
        right = bool(given) and all(c and all(isinstance(each, Tensor) for each in c) for c in self._params)
        require(right, "params", "parameters, or a mapping to them", params)
        numbers = dict(optimizer_params or {})
        if isinstance(optimizer, OptimizerConfig) and numbers:
            raise ConfigError(f"an OptimizerConfig has its numbers in it: put optimizer_params {numbers} there")
        self._config = optimizer if isinstance(optimizer, OptimizerConfig) else OptimizerConfig(optimizer, numbers)
        self._rescale = self._config.rescale_grad
        if kvstore is None and compression_params:
            raise ConfigError("compression_params need a kvstore, got None: 'device' or a dist type compresses")
        known = kvstore is None or isinstance(kvstore, str | KVStore)
        require(known, "kvstore", "a store, the type of one, or None", kvstore)
        self._store = create(kvstore) if isinstance(kvstore, str) else kvstore
        if self._store is not None and compression_params:
            self._store.set_gradient_compression(compression_params)
        require(update_on_kvstore in (None, True, False), "update_on_kvstore", "True, False or None", update_on_kvstore)
        # A store whose pushes count at once never has a sum of all workers' gradients, so it must have the weights.
        alone = self._store is not None and "async" in self._store.type
        shared = self._store is not None and (self._store.num_workers > 1 or alone)
        self._on_store = shared if update_on_kvstore is None else update_on_kvstore
        require(self._store is not None or not self._on_store, "update_on_kvstore", "False without a kvstore", True)
        require(self._on_store or not alone, "update_on_kvstore", "True with a store of a type with 'async'", False)
        if self._store is not None:
            allowed = "True with a store that has an optimizer or an updater, which changes what is pushed"
            require(self._on_store or not self._store.updates, "update_on_kvstore", allowed, update_on_kvstore)
            self._store.applied_by(self._config)
        self._updater = Updater(self._config)
        self._started = self._configured = False
        """True once the store has the weights; and once it has the optimizer's numbers."""
        self._steps = 0
        self._ahead: set[int] = set()
        """Keys of which one step more had been made than of the others when this worker came."""

    @property
    def learning_rate(self) -> float:
        """The optimizer's learning rate; with an ``lr_scheduler`` the rate of the last step.

        Raises:
            ConfigError: the optimizer was never told a rate and uses its default.
        """
        if self._config.scheduler is not None:
            return self._config.scheduler(max(1, self._steps))
        value = self._config.learning_rate
        if value is None:
            raise ConfigError(f"optimizer {self._config.name!r} was given no learning_rate")
        return value

    @property
    def steps(self) -> int:
        """The number of steps made by this worker and by the ended one whose place it took.

        A loop that begins here goes on where the other workers are::

            trainer.start()
            for step in range(trainer.steps, total):
                ...
        """
        return self._steps

    @property
    def keeps_weights(self) -> bool:
        """Return whether a store holds the weights, so that its values replace them after each step."""
        return self._started and self._on_store

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate from the next step on; the optimizer's state stays.

        Raises:
            ConfigError: an ``lr_scheduler`` says what the rate is.
        """
        if self._config.scheduler is not None:
            raise ConfigError("set_learning_rate() has no effect beside lr_scheduler: leave one of them out")
        self._use(self._config.replace(learning_rate=lr))

    def start(self) -> None:
        """Initialise the store with the weights; all workers continue from those of worker 0. The first step does it if
        needed.

        A worker that was started again gets the weights that there are now, and ``steps`` says how many were made.

        Raises:
            GroupError: steps have been made, and the weights and states are in the other workers, not in the store.
        """
        if self._started:
            return
        self._started = True
        if self._store is None:
            return
        for key, copies in enumerate(self._params):
            self._store.init(key, copies[0].data)
            if not self._on_store and self._store.version(key):
                raise GroupError(
                    f"step {self._store.version(key)} was made before this worker was started again, and with "
                    "update_on_kvstore=False the weights are in the other workers: start all of them again from a "
                    "checkpoint, or let the store keep the weights (update_on_kvstore=True)"
                )
            self._store.pull(key, [each.data for each in copies], ignore_sparse=False)
        self._go_on()
        # One that comes again tells it with the numbers of its first step: those of the start are long past.
        if self._on_store and not self._steps:
            self._tell()

    def _go_on(self) -> None:
        """Find how many steps were made before, and which keys are one step ahead."""
        assert self._store is not None
        trained = [key for key, copies in enumerate(self._params) if copies[0].requires_grad]
        versions = {key: self._store.version(key) for key in trained}
        least, most = min(versions.values(), default=0), max(versions.values(), default=0)
        # One that was killed in a push had pushed some keys and not others. More than one step between them comes from
        # ignore_stale_grad, and the key that was in every step counts.
        self._steps = least if most - least <= 1 else most
        self._ahead = {key for key, version in versions.items() if version == self._steps + 1}

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Sum the gradients over all workers, divide by ``batch_size`` and update.

        Args:
            batch_size: samples of all workers together, if losses are sums over samples; 1 leaves the sum as it is.
            ignore_stale_grad: skip parameters without a gradient in place of an error.

        Raises:
            ConfigError: a parameter has no gradient.
        """
        require(is_int(batch_size, 1), "batch_size", "an integer >= 1", batch_size)
        self.start()
        # Before the push, which names the settings that it is to be applied with.
        self._rescale_by(batch_size)
        self._steps += 1
        if not self._on_store:
            self._allreduce(ignore_stale_grad)
            self._update(ignore_stale_grad)
            return
        assert self._store is not None
        if not self._configured:
            self._tell()
        pairs = self._with_gradient(ignore_stale_grad)
        keys, values = [key for key, _ in pairs], [[each.data for each in copies] for _, copies in pairs]
        if not self._ahead:
            self._store.pushpull(keys, [gradients(copies) for _, copies in pairs], out=values)
            return
        behind = [(key, gradients(copies)) for key, copies in pairs if key not in self._ahead]
        # Once: from the next step on all keys are at the same step.
        self._ahead = set()
        self._store.push([key for key, _ in behind], [grads for _, grads in behind])
        self._store.pull(keys, values, ignore_sparse=False)

    def allreduce_grads(self) -> None:
        """Replace every gradient by its sum over the workers, so that it can be changed before ``update``.

        Raises:
            ConfigError: the store updates the weights.
        """
        self._needs_own_weights("allreduce_grads()")
        self.start()
        self._allreduce(ignore_stale_grad=False)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update the weights from gradients that ``allreduce_grads`` summed.

        Raises:
            ConfigError: the store updates the weights.
        """
        self._needs_own_weights("update()")
        require(is_int(batch_size, 1), "batch_size", "an integer >= 1", batch_size)
        self.start()
        self._rescale_by(batch_size)
        self._steps += 1
        self._update(ignore_stale_grad)

    def save_states(self, fname: str) -> None:
        """Write the optimizer's state to a safetensors file."""
        if self._on_store:
            assert self._store is not None
            self.start()
            self._store.save_optimizer_states(fname, dump_optimizer=True)
        else:
            save_states(fname, self._updater.state_dict(), self._config)

    def load_states(self, fname: str, *, numbers: bool = True) -> None:
        """Load the file of ``save_states``; ``steps`` is then the number of those that it was saved after, unless each
        worker updates the store by itself.

        Args:
            fname: path of the file.
            numbers: False: the optimizer's state alone, and not its numbers.
        """
        self.start()
        if self._on_store:
            assert self._store is not None
            self._store.load_optimizer_states(fname)
            states, config = load_states(fname)
            if "async" not in self._store.type:  # There every worker's push is an update.
                self._steps = updates_of(states) or self._steps
            if config is not None:
                # The store has the file's numbers: say the same from now on, or tell it ours again.
                self._configured = True
                self._use(config if numbers else self._config)
            return
        states, config = load_states(fname)
        self._updater.load_state_dict(states)
        self._steps = updates_of(states) or self._steps
        if config is not None and numbers:
            self._use(config)

    def _needs_own_weights(self, call: str) -> None:
        if self._on_store:
            raise ConfigError(f"{call} needs update_on_kvstore=False: here the store has the weights, call step()")

    def _allreduce(self, ignore_stale_grad: bool) -> None:
        pairs = self._with_gradient(ignore_stale_grad)
        if self._store is not None:
            self._store.pushpull([key for key, _ in pairs], [gradients(copies) for _, copies in pairs])
            return
        for _, copies in pairs:
            if len(copies) > 1:
                total = add_dense(gradients(copies), copies[0].shape, copies[0].device)
                for grad in gradients(copies):
                    grad.copy_(total)

    def _update(self, ignore_stale_grad: bool) -> None:
        with torch.no_grad():
            for key, copies in self._with_gradient(ignore_stale_grad):
                grad, rows = gradients(copies)[0], None
                if grad.is_sparse:
                    grad = grad.coalesce()
                    rows = grad.indices()[0]
                # A copy, because the updater overwrites it and the caller may read the gradient after the step.
                merged = grad.clone() if rows is None else grad.to_dense()
                self._updater(key, merged, copies[0].data, rows)
                for other in copies[1:]:
                    other.data.copy_(copies[0].data)

    def _with_gradient(self, ignore_stale_grad: bool) -> list[tuple[int, list[nn.Parameter]]]:
        trainable = [(key, copies) for key, copies in enumerate(self._params) if copies[0].requires_grad]
        stale = [key for key, copies in trainable if len(gradients(copies)) < len(copies)]
        if stale and not ignore_stale_grad:
            raise ConfigError(
                f"parameters {stale} (counted from 0) have no gradient: call backward() before, or say "
                "ignore_stale_grad=True to leave them as they are"
            )
        return [(key, copies) for key, copies in trainable if key not in stale]

    def _rescale_by(self, batch_size: int) -> None:
        wanted = self._rescale / batch_size
        if wanted != self._config.rescale_grad:
            self._use(self._config.replace(rescale_grad=wanted))

    def _use(self, config: OptimizerConfig) -> None:
        self._updater.use(config)
        self._config = config
        if self._configured:
            self._tell()

    def _tell(self) -> None:
        """Send the optimizer's settings to the store."""
        assert self._store is not None
        self._store.set_optimizer(self._config)
        self._configured = True


def gradients(copies: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradients of the copies that have one."""
    return [each.grad for each in copies if each.grad is not None]
