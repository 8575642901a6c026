"""What the ranks of the Lightning tests do: all of it in one launch, because importing Lightning takes seconds."""

from __future__ import annotations

import os
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
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world, LOCAL_WORLD_SIZE=world,
                      GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1", TORCHELASTIC_RUN_ID="test")  # fmt: skip


def module_of() -> Any:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model_of()

        def training_step(self, _: Tensor, index: int) -> Tensor:
            x, y = batch(self.global_step, self.global_rank)
            return nn.functional.cross_entropy(self.layers(x), y)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(range(8), batch_size=1)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def trainer_of(callbacks: list[Any], steps: int = STEPS, **options: Any) -> Any:
    from lightning.pytorch import Trainer

    options = {"strategy": "ddp", "devices": 2, **options}
    return Trainer(accelerator="cpu", max_steps=steps, callbacks=callbacks, logger=False, enable_progress_bar=False,
                   enable_model_summary=False, **options)  # fmt: skip


def fit(folder: str, name: str, steps: int = STEPS, ckpt: Path | None = None) -> dict[str, Any]:
    """Train, save a checkpoint every four steps, and tell where it ended and what waits."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from gradwire.integrations.lightning import GradwireCallback

    ours, module = GradwireCallback("topk", ratio=0.02, min_numel=128), module_of()
    saver = ModelCheckpoint(f"{folder}/{name}", filename="{step}", every_n_train_steps=4, save_top_k=-1)
    trainer = trainer_of([ours, saver], steps)
    trainer.fit(module, ckpt_path=ckpt)
    told = {"digest": digest(module), "metrics": ours.metrics(), "residual": residual_of(ours.state.state_dict())}
    if steps < STEPS:
        trainer.fit_loop.epoch_loop.max_steps = STEPS
        trainer.fit(module)
        told["second fit"] = digest(module)
    return told


def residual_of(state: dict[str, Any]) -> list[float]:
    (kept,) = state["ranks"].values()
    return [float(tensor.double().norm()) for tensor in kept["worker"]["residual"].values()]


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
    told["refused"] = refused()
    return told


def refused() -> dict[str, str]:
    from lightning.pytorch.strategies import DDPStrategy
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    from gradwire.integrations.lightning import GradwireCallback

    own = DDPStrategy(ddp_comm_hook=fp16_compress_hook)
    return answers({
        "single device": lambda: trainer_of([GradwireCallback()], strategy="auto", devices=1).fit(module_of()),
        "own hook": lambda: trainer_of([GradwireCallback()], strategy=own).fit(module_of()),
        "typo": lambda: trainer_of([GradwireCallback("topk", ration=0.1)]).fit(module_of()),
        "no fit": lambda: GradwireCallback().metrics(),
    })  # fmt: skip
