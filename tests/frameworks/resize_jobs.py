"""Three ranks train and save under each framework; two of them go on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.frameworks import huggingface_jobs, lightning_jobs
from tests.integrations.jobs import answers, batch, digest, model_of

STEPS = 3
TOPK = huggingface_jobs.TOPK


def everything(rank: int, folder: str) -> dict[str, Any]:
    """The residual of this rank when it saved, and that of the first two when they had loaded."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    told: dict[str, Any] = {"saved": {way: work(folder) for way, work in begin(rank).items()}}
    dist.barrier()
    dist.destroy_process_group()
    if rank < 2:
        dist.init_process_group("gloo", init_method=f"file://{folder}/two", rank=rank, world_size=2)
        told["loaded"] = {way: work(folder, "reshard") for way, work in begin(rank).items()}
        told["refused"] = answers({way: lambda work=work: work(folder, "error") for way, work in begin(rank).items()})
    return told


def begin(rank: int) -> dict[str, Any]:
    from accelerate.state import AcceleratorState, PartialState

    lightning_jobs.as_torchrun(rank)
    AcceleratorState._reset_state()
    PartialState._reset_state()
    return {"accelerate": accelerate, "trainer": trainer, "lightning": lightning}


def waits(state: Any) -> Tensor:
    (kept,) = state.state_dict()["ranks"].values()
    return torch.cat(
        [kept["worker"]["residual"][name].flatten() for name in sorted(kept["worker"]["residual"])]
    ).double()


def accelerate(folder: str, on_resize: str = "") -> dict[str, Any]:
    from accelerate import Accelerator

    from gradwire.frontends.adapters.accelerate import compress

    accelerator, module = Accelerator(cpu=True), model_of()
    model, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
    resize = {"on_resize": on_resize} if on_resize else {}
    state = compress(accelerator, model, "topk", **resize, **TOPK)
    if on_resize:
        accelerator.load_state(f"{folder}/accelerate")
        before = waits(state)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step, accelerator.process_index)
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
    if not on_resize:
        before = waits(state)
    # Into the same folder: what three ranks left there must not be taken for the third one's of now.
    accelerator.save_state(f"{folder}/accelerate")
    if on_resize:
        accelerator.load_state(f"{folder}/accelerate")
    return {"waits": before, "digest": digest(module)}


def trainer(folder: str, on_resize: str = "") -> dict[str, Any]:
    from transformers import TrainerCallback

    from gradwire.frontends.adapters.transformers import compress_trainer

    class Watcher(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.before = waits(ours.state) if on_resize else None

    whole = huggingface_jobs.trainer_of(f"{folder}/trainer", 2 * STEPS if on_resize else STEPS, save_steps=STEPS)
    saved = f"{folder}/trainer/checkpoint-{STEPS}" if on_resize else None
    resize = {"on_resize": on_resize} if on_resize else {}
    ours, watcher = compress_trainer(whole, "topk", resume_from_checkpoint=saved, **resize, **TOPK), Watcher()
    whole.add_callback(watcher)
    whole.train(resume_from_checkpoint=saved)
    return {"waits": watcher.before if on_resize else waits(ours.state), "digest": digest(whole.model)}


def lightning(folder: str, on_resize: str = "") -> dict[str, Any]:
    ours = lightning_jobs.ours_of(**({"on_resize": on_resize} if on_resize else {}))
    watcher, module = lightning_jobs.watcher_of(ours), lightning_jobs.module_of()
    file = Path(folder, "lightning.ckpt")
    whole = lightning_jobs.trainer_of([ours, watcher], 2 * STEPS if on_resize else STEPS, enable_checkpointing=False)
    whole.fit(module, ckpt_path=file if on_resize else None)
    if not on_resize:
        whole.save_checkpoint(file)
        return {"waits": waits(ours.state), "digest": digest(module)}
    (kept,) = watcher.began["ranks"].values()
    residual = kept["worker"]["residual"]
    return {
        "waits": torch.cat([residual[name].flatten() for name in sorted(residual)]).double(),
        "digest": digest(module),
    }
