"""Work of the ranks in the Lightning tests: all of it in one launch, because importing Lightning takes seconds."""

from __future__ import annotations

import copy
import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.integrations.jobs import answers, batch, digest, model_of

STEPS = 8


def as_torchrun(rank: int) -> None:
    """The environment of ``torchrun``, in which frameworks find their rank."""
    world = str(dist.get_world_size())
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=world,
        LOCAL_WORLD_SIZE=world,
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="1",
        TORCHELASTIC_RUN_ID="test",
    )


def module_of() -> Any:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.lr = model_of(), 0.1
            self.overflows = self.fails = -1

        def training_step(self, _: Tensor, index: int) -> Tensor:
            if self.global_step == self.fails:
                raise InterruptedError("by the test")
            x, y = batch(self.global_step, self.global_rank)
            bad = (self.global_step, self.global_rank) == (self.overflows, 1)
            return nn.functional.cross_entropy(self.layers(x), y) * (float("inf") if bad else 1.0)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(range(8), batch_size=1)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    return Module()


def trainer_of(callbacks: list[Any], steps: int = STEPS, **options: Any) -> Any:
    from lightning.pytorch import Trainer

    options = {"strategy": "ddp", "devices": dist.get_world_size(), **options}
    options = {"logger": False, **options}
    return Trainer(
        accelerator="cpu",
        max_steps=steps,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def ours_of(**options: Any) -> Any:
    from gradwire.frontends.adapters.lightning import GradwireCallback

    return GradwireCallback("topk", ratio=0.02, min_numel=128, **options)


def watcher_of(ours: Any) -> Any:
    """Keeps what waits when training begins, and a row of figures for every step."""
    from lightning.pytorch import Callback

    from gradwire.frontends.adapters.tensorboard import TensorBoardWriter

    class Watcher(Callback):
        def __init__(self) -> None:
            self.rows: list[tuple[str, float, int]] = []

        def add_scalar(self, *row: Any) -> None:
            self.rows.append(row)

        def on_train_start(self, *_: Any) -> None:
            self.began = copy.deepcopy(ours.state.state_dict())
            self.writer = TensorBoardWriter(ours, self, every=1)

        def on_train_batch_end(self, *_: Any) -> None:
            self.writer.step()

    return Watcher()


def fit(
    folder: str, name: str, steps: int = STEPS, ckpt: Path | None = None, overflows: int = -1, **options: Any
) -> dict[str, Any]:
    """Train, save a checkpoint every four steps, and tell where it ended and what waits."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    ours, module = ours_of(), module_of()
    module.overflows = overflows
    saver = ModelCheckpoint(f"{folder}/{name}", filename="{step}", every_n_train_steps=4, save_top_k=-1)
    trainer = trainer_of([ours, saver], steps, **options)
    trainer.fit(module, ckpt_path=ckpt)
    told = {"digest": digest(module), "metrics": ours.metrics(), "residual": residual_of(ours.state.state_dict())}
    if steps < STEPS:
        trainer.fit_loop.epoch_loop.max_steps = STEPS
        trainer.fit(module)
        told["second fit"] = digest(module)
    return told


def copied(folder: str) -> dict[str, Any]:
    """A callback that has trained, copied for a training of its own."""
    ours, module = ours_of(), module_of()
    trainer_of([ours], default_root_dir=folder).fit(module)
    again, other = copy.deepcopy(ours), module_of()
    trainer_of([again], default_root_dir=folder).fit(other)
    steps = [each.metrics()["steps"] for each in (ours, again)]
    return {"digests": [digest(module), digest(other)], "steps": steps}


def residual_of(state: dict[str, Any]) -> list[float]:
    (kept,) = state["ranks"].values()
    return [float(tensor.double().norm()) for tensor in kept["worker"].get("residual", {}).values()]


def everything(rank: int, folder: str) -> dict[str, Any]:
    as_torchrun(rank)
    told: dict[str, Any] = {"unbroken": fit(folder, "unbroken")}
    saved = Path(folder, "unbroken", "step=4.ckpt")
    told["resumed"] = fit(folder, "resumed", ckpt=saved)
    bare = saved.with_name(f"bare-{rank}.ckpt")
    checkpoint = torch.load(saved, weights_only=True)
    told["kept"] = checkpoint.pop("gradwire")
    torch.save(checkpoint, bare)
    told["without"] = fit(folder, "without", ckpt=bare)
    told["in two fits"] = fit(folder, "two", steps=4)
    told["copied"] = copied(folder)
    told["ways"] = {way: in_a_way(folder, way) for way in WAYS}
    told["broken off"], told["tried out"] = broken_off(folder), tried_out(folder)
    told["tried out in a fit"] = tried_out_in_a_fit(folder)
    told["refused"], told["logged"] = refused(), logged(folder)
    return told


def scaling() -> Any:
    from lightning.pytorch.plugins.precision import MixedPrecision

    # What ``precision="16-mixed"`` makes on a GPU.
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3))


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "accumulated and clipped in bfloat16": lambda: {
        "strategy": "ddp_find_unused_parameters_true",
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.5,
        "precision": "bf16-mixed",
    },
    "scaled": lambda: {"plugins": [scaling()], "gradient_clip_val": 0.5, "overflows": 3},
}


def in_a_way(folder: str, way: str) -> dict[str, Any]:
    unbroken = fit(folder, way, **WAYS[way]())
    return {
        "unbroken": unbroken,
        "resumed": fit(folder, f"{way}, resumed", ckpt=Path(folder, way, "step=4.ckpt"), **WAYS[way]()),
    }


def broken_off(folder: str) -> dict[str, Any]:
    """A fit that ends with an error, and another with the same callback."""
    ours, module = ours_of(), module_of()
    watcher = watcher_of(ours)
    module.fails = 3
    answers({"fit": lambda: trainer_of([ours, watcher], default_root_dir=folder).fit(module)})
    before, module.fails = residual_of(ours.state.state_dict()), -1
    trainer_of([ours, watcher], 2, default_root_dir=folder).fit(module)
    return {"before": before, "after": residual_of(watcher.began), "rows": watcher.rows}


def tried_out(folder: str) -> dict[str, Any]:
    """A callback that trains before the training, and takes it back by a checkpoint."""
    from lightning.pytorch.callbacks import LearningRateFinder

    told = {}
    for first in (True, False):
        ours, finder = ours_of(), LearningRateFinder(1e-3, 1e-1, num_training_steps=5, early_stop_threshold=None)
        watcher = watcher_of(ours)
        callbacks = [ours, finder] if first else [finder, ours]
        trainer_of([*callbacks, watcher], 2, default_root_dir=folder).fit(module_of())
        told["ours first" if first else "ours last"] = watcher.began["step"], residual_of(watcher.began)
    return told


def tried_out_in_a_fit(folder: str) -> dict[str, Any]:
    """A search of the rate between two epochs, as Lightning's documentation has it, and a second fit."""
    from lightning.pytorch.callbacks import LearningRateFinder

    ours, module, told = ours_of(), module_of(), {}

    def now() -> tuple[int, list[float]]:
        state = ours.state.state_dict()
        return state["step"], residual_of(state)

    class Finder(LearningRateFinder):
        def on_fit_start(self, *_: Any) -> None:
            """Do not search here."""

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                told["before"] = now()
                self.lr_find(trainer, pl_module)
                told["after"] = now()

    finder = Finder(1e-3, 1e-1, num_training_steps=3, early_stop_threshold=None, update_attr=False)
    watcher = watcher_of(ours)
    trainer = trainer_of([ours, finder, watcher], default_root_dir=folder)
    trainer.fit(module)
    told["end"] = now()
    trainer.fit_loop.epoch_loop.max_steps = STEPS + 1
    trainer.fit(module)
    return {**told, "second fit": (watcher.began["step"], residual_of(watcher.began))}


def other_package(ours: Any) -> None:
    """The message of pytorch_lightning's Trainer about the callback when a fit begins."""
    from pytorch_lightning import Trainer

    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=dist.get_world_size(),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    ours.setup(trainer, module_of(), "fit")


def logged(folder: str) -> dict[str, Any]:
    """Rows of Lightning's own logger, with two batches for a step."""
    from lightning.pytorch.loggers import CSVLogger

    ours, logger = ours_of(), CSVLogger(folder, name="logged", version=0)
    trainer = trainer_of([ours], logger=logger, log_every_n_steps=2, accumulate_grad_batches=2)
    trainer.fit(module_of())
    file = Path(logger.log_dir, "metrics.csv")
    with file.open() if trainer.is_global_zero else open(os.devnull) as lines:
        return {"rows": list(csv.DictReader(lines))}


def refused() -> dict[str, str]:
    from lightning.pytorch.strategies import DDPStrategy
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    from gradwire.frontends.adapters.lightning import GradwireCallback

    own = DDPStrategy(ddp_comm_hook=fp16_compress_hook)
    return answers(
        {
            "single device": lambda: trainer_of([GradwireCallback()], strategy="auto", devices=1).fit(module_of()),
            "own hook": lambda: trainer_of([GradwireCallback()], strategy=own).fit(module_of()),
            "typo": lambda: trainer_of([GradwireCallback("topk", ration=0.1)]).fit(module_of()),
            "no fit": lambda: GradwireCallback().metrics(),
            "two": lambda: trainer_of([GradwireCallback(), GradwireCallback("topk")]).fit(module_of()),
            "other package": lambda: other_package(GradwireCallback()),
        }
    )
