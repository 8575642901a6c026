"""MXNet's Module over a torch module: ``fit`` trains it, through a store if there are several senders or workers.

    a batch -> a share for each context -> outputs, loss, gradients of each -> the store sums -> new weights for all

Invariants:
    Losses are sums over samples, as MXNet's are; the optimizer divides by the number of samples in a batch, in sync
    mode of all workers' batches. So the threshold of a compression means the same for any batch size.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gradwire.contrib.mxnet.base_module import RATE, BaseModule, as_list, gathered, pieces, sample_count
from gradwire.contrib.mxnet.eval_metric import EvalMetric
from gradwire.contrib.mxnet.params_files import load_symbol, save_symbol, states_file
from gradwire.errors import ConfigError, nearest, require
from gradwire.kvstore import create
from gradwire.kvstore.protocol.store import KVStore
from gradwire.kvstore.protocol.updater import OptimizerConfig
from gradwire.kvstore.trainer import Trainer

__all__ = ["Module"]

Context: TypeAlias = str | torch.device


class Module(BaseModule):
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
        super().__init__(symbol, self.contexts[0], logger)
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
        self._batch_size = self._batch_size or sample_count(data) * self._sync_workers()

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
