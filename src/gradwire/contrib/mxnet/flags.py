"""Command-line flags of MXNet's image-classification examples, and training by them."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gradwire.contrib.mxnet.callback import Speedometer, do_checkpoint
from gradwire.contrib.mxnet.eval_metric import EvalMetric
from gradwire.contrib.mxnet.eval_metric import create as create_metric
from gradwire.contrib.mxnet.module import Module
from gradwire.contrib.mxnet.params_files import load_symbol, params_file
from gradwire.errors import ConfigError, require
from gradwire.kvstore import create
from gradwire.kvstore.protocol.lr_scheduler import MultiFactorScheduler
from gradwire.kvstore.protocol.store import KVStore

__all__ = ["add_fit_args", "fit"]

Loaders: TypeAlias = Callable[[argparse.Namespace, KVStore], tuple[Iterable[Any], Iterable[Any] | None]]
"""``loaders(args, kv)``: a worker's share of the training batches, and what is scored."""

WITH_MOMENTUM = ("sgd", "nag", "signum")
"""Optimizers to which MXNet's examples give ``--mom``."""


def add_fit_args(parser: argparse.ArgumentParser) -> Any:
    """Add the flags, by MXNet's names and with its defaults.

    Args:
        parser: parser of the script.

    Returns:
        The group of flags.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> _ = add_fit_args(parser)
        >>> parser.parse_args(["--kv-store", "dist_sync", "--gc-type", "2bit"]).gc_type
        '2bit'
    """
    train = parser.add_argument_group("Training")
    train.add_argument("--gpus", default="", help="such as 0 or 0,2,5; empty: the CPU")
    train.add_argument("--cpus", type=int, default=1, help="contexts on the CPU, each of them a sender")
    train.add_argument("--kv-store", default="device", help="device, local, dist_sync, dist_async, ...")
    train.add_argument("--num-epochs", type=int, default=100)
    train.add_argument("--num-examples", type=int, default=0, help="of all workers; 0: the length of the training data")
    train.add_argument("--lr", type=float, default=0.1, help="the learning rate at the start")
    train.add_argument("--lr-factor", type=float, default=0.1, help="by which it is multiplied at each step")
    train.add_argument("--lr-step-epochs", default="", help="the epochs after which that happens, such as 30,60")
    train.add_argument("--optimizer", default="sgd")
    train.add_argument("--mom", type=float, default=0.9, help="momentum, for optimizers that have it")
    train.add_argument("--wd", type=float, default=0.0001, help="weight decay")
    train.add_argument("--batch-size", type=int, default=128, help="samples of a batch of each worker")
    train.add_argument("--disp-batches", type=int, default=20, help="batches from one line of progress to the next")
    train.add_argument("--model-prefix", default="", help="write checkpoints that begin like this")
    train.add_argument("--save-period", type=int, default=1, help="epochs from one checkpoint to the next")
    train.add_argument("--load-epoch", type=int, help="go on from the checkpoint after this epoch")
    train.add_argument("--top-k", type=int, default=0, help="report this accuracy, too; 0: do not")
    train.add_argument("--loss", default="", help="report this loss, too: ce")
    train.add_argument("--gc-type", default="none", help="none, 2bit, 1bit, or a method of `gradwire methods`")
    train.add_argument("--gc-threshold", help="a number, or auto; without it the method's own, 0.5 for 2bit and 1bit")
    return train


def fit(
    args: argparse.Namespace,
    network: nn.Module,
    data_loader: Loaders,
    *,
    loss: Callable[[Any, Any], Tensor] | None = None,
) -> Module:
    """Train with the settings of the flags.

    Args:
        args: namespace that a parser with ``add_fit_args`` read.
        network: a torch module.
        data_loader: function that is called with ``args`` and the store, and gives training and evaluation batches.
        loss: loss, as for ``Module``.

    Returns:
        The trained Module.

    Raises:
        ConfigError: a flag that cannot be followed.
    """
    # First of all: in a process that is to be a server this does not return.
    kv = create(args.kv_store)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s Node[{kv.rank}] %(message)s")
    logging.info("start with arguments %s", args)
    train, evaluation = data_loader(args, kv)
    begin = args.load_epoch or 0
    if args.load_epoch is not None:
        require(bool(args.model_prefix), "--model-prefix", "given with --load-epoch", args.model_prefix)
        load_symbol(network, _prefix(args, kv.rank, args.load_epoch), begin)
    module = Module(network, context=_contexts(args), compression_params=_compression(args), loss=loss)
    checkpoint = do_checkpoint(_prefix(args, kv.rank), args.save_period) if args.model_prefix else None
    module.fit(
        train,
        evaluation,
        _metrics(args),
        checkpoint,
        Speedometer(args.batch_size, args.disp_batches),
        kv,
        args.optimizer,
        _optimizer_params(args, kv, train, begin),
        begin_epoch=begin,
        num_epoch=args.num_epochs,
    )
    return module


def _contexts(args: argparse.Namespace) -> list[torch.device]:
    if args.gpus:
        return [torch.device("cuda", int(index)) for index in args.gpus.split(",")]
    require(args.cpus >= 1, "--cpus", ">= 1", args.cpus)
    return [torch.device("cpu")] * args.cpus


def _compression(args: argparse.Namespace) -> dict[str, Any] | None:
    if args.gc_type == "none":
        require(args.gc_threshold is None, "--gc-threshold", "left out with --gc-type none", args.gc_threshold)
        return None
    return {"type": args.gc_type, **({} if args.gc_threshold is None else {"threshold": args.gc_threshold})}


def _metrics(args: argparse.Namespace) -> EvalMetric:
    several: list[Any] = ["accuracy"]
    if args.top_k > 0:
        several.append(create_metric("top_k_accuracy", top_k=args.top_k))
    return create_metric([*several, *filter(None, args.loss.split(","))])


def _prefix(args: argparse.Namespace, rank: int, epoch: int | None = None) -> str:
    """The prefix of a worker's own checkpoints, because buffers differ; to resume, worker 0's if it has none."""
    own = f"{args.model_prefix}-{rank}" if rank else str(args.model_prefix)
    missing = epoch is not None and not Path(params_file(own, epoch)).exists()
    return str(args.model_prefix) if missing else own


def _optimizer_params(args: argparse.Namespace, kv: KVStore, train: Any, begin: int) -> dict[str, Any]:
    numbers: dict[str, Any] = {"learning_rate": args.lr, "wd": args.wd}
    if args.optimizer in WITH_MOMENTUM:
        numbers["momentum"] = args.mom
    epochs = _numbers("--lr-step-epochs", args.lr_step_epochs)
    # If training is resumed, the rate's steps of earlier epochs have been made.
    numbers["learning_rate"] *= args.lr_factor ** sum(epoch <= begin for epoch in epochs)
    later = [epoch - begin for epoch in epochs if epoch > begin]
    if later:
        updates = _epoch_size(args, kv, train)
        numbers["lr_scheduler"] = MultiFactorScheduler([updates * epoch for epoch in later], args.lr_factor)
    return numbers


def _epoch_size(args: argparse.Namespace, kv: KVStore, train: Any) -> int:
    if args.num_examples:
        return max(1, -(-int(args.num_examples // kv.num_workers) // int(args.batch_size)))
    if not hasattr(train, "__len__"):
        raise ConfigError("--lr-step-epochs needs --num-examples where the training data has no length")
    return max(1, len(train))


def _numbers(name: str, text: str) -> Sequence[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"{name} must be integers separated by commas, got {text!r}") from None
