"""MXNet's Module over a torch module: ``fit`` trains it, through a store if there are several senders or workers.

    a batch -> a share for each context -> outputs, loss, gradients of each -> the store sums -> new weights for all

Invariants:
    Losses are sums over samples, as MXNet's are; the optimizer divides by the number of samples in a batch, in sync
    mode of all workers' batches. So the threshold of a compression means the same for any batch size.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gradwire.contrib.mxnet.callback import BatchEndParam, EpochEnd
from gradwire.contrib.mxnet.eval_metric import EvalMetric, Measure
from gradwire.contrib.mxnet.eval_metric import create as create_metric
from gradwire.contrib.mxnet.params_files import load_symbol, save_symbol, states_file
from gradwire.errors import ConfigError, is_int, nearest, require
from gradwire.kvstore import create
from gradwire.kvstore.protocol.store import KVStore
from gradwire.kvstore.protocol.updater import OptimizerConfig
from gradwire.kvstore.trainer import Trainer

__all__ = ["Module"]

Context: TypeAlias = str | torch.device

BatchEnd: TypeAlias = Callable[[BatchEndParam], None]

RATE = (("learning_rate", 0.01),)
"""MXNet's default of ``optimizer_params``."""


class Module:
    """A torch module with MXNet's way of training it.

    Args:
        symbol: the torch module. Its parameters and buffers are those that are trained.
        logger: logger for the lines of ``fit``.
        context: a device or several; each of them is a sender, also where several are the same device. The module
            moves to the first one, and the others get copies.
        fixed_param_names: parameters that are not trained.
        compression_params: argument of ``KVStore.set_gradient_compression``.
        loss: function of outputs and labels, a sum over the samples; the default is the cross-entropy of a softmax.

    Raises:
        ConfigError: a bad argument.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> batches = [(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1]))] * 20
        >>> module = Module(nn.Linear(2, 2), context=["cpu", "cpu"], compression_params={"type": "2bit"})
        >>> module.fit(batches, num_epoch=2, kvstore="device", optimizer_params={"learning_rate": 0.5})
        >>> module.score(batches, "acc")
        [('accuracy', 1.0)]
    """

    def __init__(
        self,
        symbol: nn.Module,
        *,
        logger: logging.Logger | None = None,
        context: Context | Sequence[Context] = "cpu",
        fixed_param_names: Sequence[str] = (),
        compression_params: Mapping[str, Any] | None = None,
        loss: Callable[[Any, Any], Tensor] | None = None,
    ) -> None:
        require(isinstance(symbol, nn.Module), "symbol", "a torch module", symbol)
        contexts = [context] if isinstance(context, str | torch.device) else list(context)
        require(bool(contexts), "context", "a device or a list of them", context)
        self.contexts = [torch.device(each) for each in contexts]
        self._symbol, self._device = symbol.to(self.contexts[0]), self.contexts[0]
        self._skip = 0
        """Batches that were trained before this worker was started again."""
        self.logger = logger or logging.getLogger()
        self.loss = loss or nn.CrossEntropyLoss(reduction="sum")
        self._compression = compression_params
        fix(symbol, fixed_param_names)
        self._copies = [symbol, *(copy.deepcopy(symbol).to(each) for each in self.contexts[1:])]
        self._trainer: Trainer | None = None
        self._store: KVStore | None = None
        self._batch_size = self._updates = 0
        self._scheduler: Any = None
        self._states: Path | None = None
        self._outputs: list[Tensor] = []

    @property
    def symbol(self) -> nn.Module:
        """The torch module."""
        return self._symbol

    def fit(
        self,
        train_data: Iterable[Any],
        eval_data: Iterable[Any] | None = None,
        eval_metric: Measure = "acc",
        epoch_end_callback: EpochEnd | Sequence[EpochEnd] | None = None,
        batch_end_callback: BatchEnd | Sequence[BatchEnd] | None = None,
        kvstore: KVStore | str | None = "local",
        optimizer: str | OptimizerConfig = "sgd",
        optimizer_params: Any = RATE,
        eval_end_callback: BatchEnd | Sequence[BatchEnd] | None = None,
        eval_batch_end_callback: BatchEnd | Sequence[BatchEnd] | None = None,
        *,
        arg_params: Mapping[str, Tensor] | None = None,
        aux_params: Mapping[str, Tensor] | None = None,
        allow_missing: bool = False,
        begin_epoch: int = 0,
        num_epoch: int,
        validation_metric: Measure | None = None,
    ) -> None:
        """Train the module. A restarted worker skips the batches that were trained before it came.

        Args:
            train_data: batches, each (data, label); iterated over once in each epoch. A worker has its own share.
            eval_data: batches to score after each epoch.
            eval_metric: name of a metric, or several: see ``eval_metric.create``.
            epoch_end_callback: called with (epoch, symbol, arg_params, aux_params); one or several.
            batch_end_callback: called with a ``BatchEndParam``.
            kvstore: a store, its type, or None. "local" and "device" are left out on one context without compression.
            optimizer: optimizer, as for ``KVStore.set_optimizer``.
            optimizer_params: parameters of the optimizer; ``rescale_grad`` is 1 / samples of the first batch (of all
                workers in sync) if it is not there, and ``lr_scheduler`` a function from the number of the update, from
                1, to the rate.
            eval_end_callback: called after the score of an epoch.
            eval_batch_end_callback: called after each batch of it.
            arg_params: parameters to start from, by name.
            aux_params: buffers to start from, by name.
            allow_missing: true: some of these may be left out.
            begin_epoch: number of the first epoch, where training goes on.
            num_epoch: epochs end before this number.
            validation_metric: metric for ``eval_data``; None is ``eval_metric``.

        Raises:
            ConfigError: a bad argument, or data without batches.
        """
        require(is_int(num_epoch, 1), "num_epoch", "an integer >= 1", num_epoch)
        require(is_int(begin_epoch, 0), "begin_epoch", "an integer >= 0", begin_epoch)
        if arg_params is not None or aux_params is not None:
            self.set_params(arg_params or {}, aux_params or {}, allow_missing=allow_missing or arg_params is None)
        self.init_optimizer(kvstore, optimizer, optimizer_params)
        metric = create_metric(eval_metric)
        validation = metric if validation_metric is None else create_metric(validation_metric)
        for epoch in range(begin_epoch, num_epoch):
            started = time.monotonic()
            if not self._train(train_data, metric, epoch, as_list(batch_end_callback)):
                continue
            self._log(epoch, "Train-", metric.get_global_name_value())
            self.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.monotonic() - started)
            self._sync_buffers()
            for callback in as_list(epoch_end_callback):
                callback(epoch, self.symbol, *self.get_params())
            if eval_data is not None:
                scores = self.score(
                    eval_data,
                    validation,
                    batch_end_callback=eval_batch_end_callback,
                    score_end_callback=eval_end_callback,
                    epoch=epoch,
                )
                self._log(epoch, "Validation-", scores)

    def score(
        self,
        eval_data: Iterable[Any],
        eval_metric: Measure,
        num_batch: int | None = None,
        batch_end_callback: BatchEnd | Sequence[BatchEnd] | None = None,
        score_end_callback: BatchEnd | Sequence[BatchEnd] | None = None,
        epoch: int = 0,
    ) -> list[tuple[str, float]]:
        """Measure the quality of the outputs, without training.

        Args:
            eval_data: batches, each (data, label).
            eval_metric: metric, as for ``fit``.
            num_batch: use so many of them; None: all.
            batch_end_callback: called after each batch.
            score_end_callback: called at the end.
            epoch: number of the epoch, for the callbacks.

        Returns:
            Names and values.
        """
        metric = create_metric(eval_metric)
        metric.reset()
        last = 0
        for outputs, last, batch in self.iter_predict(eval_data, num_batch):
            metric.update(as_list(batch[1]), outputs)
            self._tell(as_list(batch_end_callback), epoch, last, metric, batch)
        self._tell(as_list(score_end_callback), epoch, last, metric, None)
        return metric.get_global_name_value()

    def predict(
        self,
        eval_data: Any,
        num_batch: int | None = None,
        merge_batches: bool = True,
        always_output_list: bool = False,
    ) -> Any:
        """Compute the outputs of all batches.

        Args:
            eval_data: a tensor, or batches of (data, label) or of data alone.
            num_batch: use so many of them; None: all.
            merge_batches: true: the outputs of the batches become one; false: a list by batch.
            always_output_list: true: the result is a list even where the module has one output.

        Raises:
            ConfigError: data without batches.
        """
        batches = [outputs for outputs, _, _ in self.iter_predict(eval_data, num_batch)]
        require(bool(batches), "eval_data", "at least one batch", "none")
        if not merge_batches:
            return batches
        merged = gathered(batches)
        return merged[0] if len(merged) == 1 and not always_output_list else merged

    @torch.no_grad()
    def iter_predict(self, eval_data: Any, num_batch: int | None = None) -> Iterator[tuple[list[Tensor], int, Any]]:
        """Yield (outputs, number of the batch, the batch) one by one, as ``predict`` computes them."""
        batches = [eval_data] if isinstance(eval_data, Tensor) else eval_data
        for number, batch in enumerate(batches):
            if number == num_batch:
                return
            self.symbol.eval()
            output = self.symbol(*(each.to(self._device) for each in input_of(batch)))
            yield as_list(output), number, batch

    def init_optimizer(
        self,
        kvstore: KVStore | str | None = "local",
        optimizer: str | OptimizerConfig = "sgd",
        optimizer_params: Any = RATE,
        force_init: bool = False,
    ) -> None:
        """Prepare the optimizer, before the first update.

        Args:
            kvstore: store or its type, as for ``fit``.
            optimizer: optimizer, as for ``fit``.
            optimizer_params: parameters of the optimizer, as for ``fit``.
            force_init: begin with a new state where there is one; without it, ``fit`` goes on with what there is.
        """
        if self._trainer is not None and not force_init:
            self.logger.warning("the optimizer is there already: training goes on with it, and not with %r", optimizer)
            return
        numbers = dict(optimizer_params)
        self._scheduler = numbers.pop("lr_scheduler", None)
        self._batch_size = 1 if "rescale_grad" in numbers else 0
        if self._scheduler is not None and "learning_rate" in numbers:
            # A function may be one that takes no attributes, such as a method of an object.
            with suppress(AttributeError):
                self._scheduler.base_lr = numbers["learning_rate"]
        self._store = self._made(kvstore)
        copies = list(zip(*(each.parameters() for each in self._copies), strict=True))
        self._trainer = Trainer(copies, optimizer, numbers, self._store, self._compression)
        self._updates = 0
        # Before the first gradients: they must be those of worker 0's weights.
        self._trainer.start()
        self._updates = self._skip = self._trainer.steps
        # A worker that was started again finds states that are newer than the file's.
        if self._states is not None and not self._skip:
            self.load_optimizer_states(str(self._states))

    def forward_backward(self, data_batch: Any) -> None:
        """Compute outputs and gradients of a batch, each context's share on its own copy."""
        require(isinstance(data_batch, tuple | list) and len(data_batch) == 2, "a batch", "(data, label)", data_batch)
        data, label = data_batch
        count = len(self._copies)
        shares = zip(self._copies, self.contexts, pieces(data, count), pieces(label, count), strict=True)
        outputs = []
        for module, device, mine, target in shares:
            module.train()
            module.zero_grad()
            output = module(*(each.to(device) for each in mine))
            labels = [each.to(device) for each in target]
            self.loss(output, labels[0] if len(labels) == 1 else labels).sum().backward()
            fill(module)
            outputs.append([each.detach() for each in as_list(output)])
        self._outputs = gathered(outputs)
        self._batch_size = self._batch_size or len(as_list(data)[0]) * self._sync_workers()

    def update(self) -> None:
        """Sum the gradients, and update the weights of all contexts.

        Raises:
            ConfigError: before ``init_optimizer``, or before a batch.
        """
        trainer = self._ready()
        if not self._batch_size:
            raise ConfigError("update() has no gradients yet: call forward_backward() before it")
        self._updates += 1
        if self._scheduler is not None:
            rate = float(self._scheduler(self._updates))
            if rate != trainer.learning_rate:
                trainer.set_learning_rate(rate)
        trainer.step(self._batch_size)

    def update_metric(self, eval_metric: EvalMetric, labels: Any) -> None:
        """Update a metric with the outputs of the last batch."""
        eval_metric.update(as_list(labels), self._outputs)

    def get_outputs(self) -> list[Tensor]:
        """Return the outputs of the last batch of ``forward_backward``."""
        return self._outputs

    def get_params(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return copies of the parameters and of the buffers, by name."""
        named = self.symbol.named_parameters(), self.symbol.named_buffers()
        arg, aux = ({name: each.detach().cpu().clone() for name, each in those} for those in named)
        return arg, aux

    @torch.no_grad()
    def set_params(
        self,
        arg_params: Mapping[str, Tensor],
        aux_params: Mapping[str, Tensor],
        allow_missing: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set the values of parameters and buffers.

        Args:
            arg_params: parameters by name.
            aux_params: buffers by name.
            allow_missing: true: parameters that are not named stay as they are.
            allow_extra: true: names that the module does not have are left out.

        Raises:
            ConfigError: a name is missing or unknown, or training with a store that keeps the weights has begun.
        """
        began = self._trainer is not None and self._trainer.keeps_weights
        if began:
            raise ConfigError(
                "set_params() comes too late: the store has the weights since fit() or init_optimizer(), and would "
                "overwrite these; call it before them"
            )
        given = {**arg_params, **aux_params}
        for module in self._copies:
            own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            missing, extra = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
            if missing and not allow_missing:
                raise ConfigError(f"arg_params and aux_params lack {missing}: give them, or allow_missing=True")
            if extra and not allow_extra:
                raise ConfigError(f"the module has none of {extra}, only {sorted(own)}: or say allow_extra=True")
            for name in own.keys() & given.keys():
                require(
                    own[name].shape == given[name].shape,
                    name,
                    f"of shape {tuple(own[name].shape)}",
                    tuple(given[name].shape),
                )
                own[name].copy_(given[name])

    def save_checkpoint(self, prefix: str, epoch: int, save_optimizer_states: bool = False) -> None:
        """Write ``PREFIX-0003.safetensors``, and ``PREFIX-0003.states`` if asked for.

        Args:
            prefix: prefix of the files.
            epoch: number of epochs that have been made.
            save_optimizer_states: true: write the optimizer's states, so that training can go on as if it had not
                stopped.
        """
        self._sync_buffers()
        save_symbol(self.symbol, prefix, epoch)
        if save_optimizer_states:
            self._ready().save_states(str(states_file(prefix, epoch)))

    @staticmethod
    def load(
        prefix: str, epoch: int, load_optimizer_states: bool = False, *, symbol: nn.Module, **kwargs: Any
    ) -> Module:
        """Make a Module from the files of ``save_checkpoint``.

        Args:
            prefix: prefix that ``save_checkpoint`` was given.
            epoch: number of epochs that ``save_checkpoint`` was given.
            load_optimizer_states: true: read the optimizer's states, too, when training goes on; one worker reads them
                for all.
            symbol: a torch module of the same shape: a file has tensors in it and no code.
            kwargs: further arguments of ``Module``.
        """
        load_symbol(symbol, prefix, epoch)
        module = Module(symbol, **kwargs)
        module._states = states_file(prefix, epoch) if load_optimizer_states else None
        return module

    def save_optimizer_states(self, fname: str) -> None:
        """Write the optimizer's states to a safetensors file."""
        self._ready().save_states(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Load the file of ``save_optimizer_states``; worker 0 does it for all, so every worker must call this."""
        trainer = self._ready()
        if self._store is None or self._store.rank == 0:
            trainer.load_states(fname, numbers=False)
        if self._store is not None:
            self._store.barrier()

    def _train(self, data: Iterable[Any], metric: EvalMetric, epoch: int, callbacks: Sequence[BatchEnd]) -> bool:
        """Train an epoch; return whether any batch of it was left to train."""
        metric.reset()
        number, trained = -1, False
        for number, batch in enumerate(data):
            if self._skip:
                self._skip -= 1
                continue
            trained = True
            self.forward_backward(batch)
            self.update()
            self.update_metric(metric, batch[1])
            self._tell(callbacks, epoch, number, metric, batch)
        if number < 0:
            raise ConfigError(
                f"train_data must give a batch in every epoch, got none in epoch {epoch}: a generator ends for good, a "
                "list or a DataLoader begins again"
            )
        return trained

    def _tell(self, callbacks: Sequence[BatchEnd], epoch: int, number: int, metric: EvalMetric, batch: Any) -> None:
        for callback in callbacks:
            callback(BatchEndParam(epoch, number, metric, {"module": self, "data_batch": batch}))

    def _log(self, epoch: int, what: str, scores: Sequence[tuple[str, float]]) -> None:
        for name, value in scores:
            self.logger.info("Epoch[%d] %s%s=%f", epoch, what, name, value)

    def _made(self, kvstore: KVStore | str | None) -> KVStore | None:
        """Make the store; a plain sum of one context's gradients needs none."""
        if not isinstance(kvstore, str):
            return kvstore
        alone = len(self.contexts) == 1 and "dist" not in kvstore.lower() and not self._compression
        return None if alone else create(kvstore)

    def _sync_workers(self) -> int:
        """Count the workers whose batches one update sums."""
        store = self._store
        return store.num_workers if store is not None and "async" not in store.type else 1

    @torch.no_grad()
    def _sync_buffers(self) -> None:
        """Average buffers such as running means over all contexts."""
        for same in zip(*(each.buffers() for each in self._copies), strict=True):
            if same[0].is_floating_point():
                mean = torch.stack([each.to(self._device) for each in same]).mean(0)
                for each in same:
                    each.copy_(mean)

    def _ready(self) -> Trainer:
        if self._trainer is None:
            raise ConfigError("a Module is updated after fit() or init_optimizer(), and not before")
        return self._trainer


def fix(symbol: nn.Module, names: Sequence[str]) -> None:
    """Exclude parameters from training."""
    params = dict(symbol.named_parameters())
    for name in names:
        if name not in params:
            raise ConfigError(f"fixed_param_names: the module has no parameter {name!r}: {nearest(name, params)}")
        params[name].requires_grad_(False)


def fill(module: nn.Module) -> None:
    """Set missing gradients to zero, because every worker pushes every key in every step, used or not."""
    for param in module.parameters():
        if param.requires_grad and param.grad is None:
            param.grad = torch.zeros_like(param)


def as_list(value: Any) -> list[Any]:
    """Convert one object, several or None to a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, tuple | list) else [value]


def input_of(batch: Any) -> list[Tensor]:
    """The tensors with which a module is called, from (data, label) or from data alone."""
    return as_list(batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else batch)


def pieces(data: Any, count: int) -> list[list[Tensor]]:
    """Split a batch's tensors into ``count`` pieces along the first dimension, which differ by at most one sample.

    Raises:
        ConfigError: fewer samples than pieces, or something that is no tensor.
    """
    tensors = as_list(data)
    for tensor in tensors:
        require(isinstance(tensor, Tensor), "a batch", "tensors", type(tensor).__name__)
        require(len(tensor) >= count, "a batch", f"at least {count} samples, one for each context", len(tensor))
    return [list(piece) for piece in zip(*(tensor.tensor_split(count) for tensor in tensors), strict=True)]


def gathered(outputs: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Join the outputs of all pieces or batches, on the device of the first."""
    device = outputs[0][0].device
    return [torch.cat([each.to(device) for each in those]) for those in zip(*outputs, strict=True)]
