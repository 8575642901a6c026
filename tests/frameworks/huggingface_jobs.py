"""Work of the ranks in the Hugging Face tests: all of it in one launch, because the imports take seconds."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.frameworks.lightning_jobs import as_torchrun, residual_of
from tests.integrations.jobs import answers, batch, digest, model_of

STEPS, WORDS = 6, 64
TOPK = {"ratio": 0.02, "min_numel": 128}


def everything(rank: int, folder: str) -> dict[str, Any]:
    as_torchrun(rank)
    os.environ["ACCELERATE_USE_CPU"] = "true"
    # Accelerate's state is one for all of a process: a Trainer leaves its dataloader there.
    told = {
        "accelerate": accelerated(folder),
        "two models": two_models(folder),
        "trainer": trained(folder),
        "ways": in_many_ways(rank, folder),
        "preempted": {moment: preempted(folder, moment) for moment in MOMENTS},
        "trials": trials(rank, folder),
        "hosts": hosts(rank, folder),
        "removed": removed(rank, folder),
    }
    return {**told, "refused": refused(folder), "alone": alone(folder)}


def accelerated_loop(accelerator: Any, steps: range, folder: str, load: str, late: bool) -> tuple[nn.Module, Any]:
    """Train under Accelerate, and save in the middle what another loop resumes from.

    Args:
        accelerator: accelerator of this loop.
        steps: number of steps to make.
        folder: folder of the checkpoints.
        load: the checkpoint to resume from; empty: begin anew, and save.
        late: true: the state of gradwire is made after the checkpoint was loaded.

    Returns:
        The model as it was prepared, and the state of gradwire.
    """
    from gradwire.frontends.adapters.accelerate import compress

    module = model_of()
    model, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
    state = None if late else compress(accelerator, model, "topk", **TOPK)
    if load:
        accelerator.load_state(load)
    state = state or compress(accelerator, model, "topk", **TOPK)
    for step in steps:
        if step == STEPS // 2 and not load:
            accelerator.save_state(f"{folder}/accelerate")
        x, y = batch(step, accelerator.process_index)
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
    return model, state


def accelerated(folder: str) -> dict[str, Any]:
    """A loop under Accelerate, unbroken and resumed in the middle."""
    from accelerate import Accelerator

    def loop(steps: range, load: str = "", late: bool = False) -> dict[str, Any]:
        model, state = accelerated_loop(Accelerator(cpu=True), steps, folder, load, late)
        return {"digest": digest(model.module), "metrics": state.metrics()}

    rest, saved = range(STEPS // 2, STEPS), f"{folder}/accelerate"
    unbroken, bare = loop(range(STEPS)), f"{folder}/accelerate without residuals"
    if int(os.environ["RANK"]) == 0:
        shutil.copytree(saved, bare, ignore=shutil.ignore_patterns("gradwire*"))
    torch.distributed.barrier()
    return {
        "unbroken": unbroken,
        "resumed": loop(rest, saved),
        "late": loop(rest, saved, late=True),
        "without": loop(rest, bare, late=True),
        "files": sorted(file.name for file in Path(saved).glob("gradwire*")),
    }


def two_models(folder: str) -> dict[str, Any]:
    """Two models of the same names under one Accelerator, two batches for a step, checkpoints that it names itself."""
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    from gradwire.frontends.adapters.accelerate import compress

    config = {"project_dir": f"{folder}/project", "automatic_checkpoint_naming": True, "total_limit": 1}

    def loop(steps: range, load: bool = False) -> dict[str, Any]:
        accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=2, project_config=ProjectConfiguration(**config)
        )
        modules = [model_of(seed=seed) for seed in (3, 4)]
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in modules]
        one, *optimizers, other = accelerator.prepare(modules[0], *optimizers, modules[1])
        # The second one first: residuals are told apart by the order in which models were prepared.
        states = [compress(accelerator, model, "topk", **TOPK) for model in ((other, one) if load else (one, other))]
        if load:
            accelerator.load_state()
        for step in steps:
            if step == STEPS // 2 and not load:
                accelerator.save_state()
            for part in range(2):
                x, y = batch(10 * step + part, accelerator.process_index)
                with accelerator.accumulate(one, other):
                    for model in (one, other):
                        accelerator.backward(nn.functional.cross_entropy(model(x), y))
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
        return {
            "digests": [digest(module) for module in modules],
            "steps": [state.metrics()["steps"] for state in states],
        }

    whole = loop(range(STEPS))
    files = sorted(file.name for file in Path(folder, "project").rglob("gradwire*"))
    return {"unbroken": whole, "resumed": loop(range(STEPS // 2, STEPS), True), "files": files}


def trainer_of(folder: str, steps: int = STEPS, kind: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A GPT-2 of two tiny layers that learns random text by heart, under ``Trainer`` or a class made from it."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(5)
    sizes = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    text = torch.randint(WORDS, (48, 16), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in text]
    arguments = {
        "max_steps": steps,
        "save_steps": STEPS // 2,
        "optim": "sgd",
        "learning_rate": 0.5,
        "max_grad_norm": 0.0,
        **options,
    }
    args = TrainingArguments(
        folder,
        use_cpu=True,
        per_device_train_batch_size=4,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        lr_scheduler_type="constant",
        **arguments,
    )
    return (kind or Trainer)(GPT2LMHeadModel(config), args, train_dataset=data, eval_dataset=data[:8])


def trained(folder: str) -> dict[str, Any]:
    """Unbroken; resumed from a copy of its checkpoint; and resumed without the residuals."""
    from gradwire.frontends.adapters.transformers import compress_trainer

    def run(name: str, resume: Any = None, ours: Any = None) -> dict[str, Any]:
        trainer = trainer_of(f"{folder}/{name}")
        callback = compress_trainer(
            trainer, "topk", resume_from_checkpoint=ours if ours is not None else resume, **TOPK
        )
        trainer.train(resume_from_checkpoint=resume)
        told = {"digest": digest(trainer.model), "metrics": callback.metrics()}
        if name == "without":
            trainer.train()
            told["steps after a second train"] = callback.metrics()["steps"]
        return told

    unbroken, saved = run("unbroken"), f"{folder}/unbroken/checkpoint-{STEPS // 2}"
    trainer = trainer_of(f"{folder}/auto")
    auto = compress_trainer(trainer)
    trainer.train()
    return {
        "unbroken": unbroken,
        "auto": {"digest": digest(trainer.model), "metrics": auto.metrics()},
        "resumed": run("resumed", saved),
        "without": run("without", saved, False),
        "files": sorted(file.name for file in Path(saved).glob("gradwire*")),
    }


def in_many_ways(rank: int, folder: str) -> dict[str, Any]:
    """Two batches for a step, clipped, in bfloat16; of the checkpoints only the best is kept, which is not the last.

    Then the same Trainer goes on from that checkpoint again.
    """
    from gradwire.frontends.adapters.transformers import compress_trainer

    options = {
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.5,
        "bf16": True,
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
        "eval_steps": STEPS // 2,
        "metric_for_best_model": "loss",
        "greater_is_better": True,
    }
    name = f"{folder}/ways"
    saved = f"{name}/checkpoint-{STEPS // 2}"
    if rank == 1:
        # A process that is late with what it writes into a checkpoint.
        sys.addaudithook(lambda event, args: late(event, args, f"{name}/checkpoint-{STEPS}"))
    trainer = trainer_of(name, **options)
    callback = compress_trainer(trainer, "topk", **TOPK)
    trainer.train()
    told = {
        "metrics": callback.metrics(),
        "residual": residual_of(callback.state.state_dict()),
        # The first process deletes when the others may have ended.
        "files": files_in(name),
    }
    told["forgotten"] = answers({"train": lambda: trainer.train(resume_from_checkpoint=saved)})["train"]
    callback.resume_from_checkpoint = saved
    trainer.train(resume_from_checkpoint=saved)
    told["again"] = residual_of(callback.state.state_dict())
    callback.resume_from_checkpoint = False
    trainer.train(resume_from_checkpoint=saved)
    told["without"] = residual_of(callback.state.state_dict())
    return told


MOMENTS = {"between two steps": "on_step_end", "before the optimizer's step": "on_step_begin"}
"""Moments at which the Trainer saves on SIGTERM, each with the event before it."""


def preempted(folder: str, moment: str) -> dict[str, Any]:
    """A Trainer that SIGTERM stops after two steps, and another that goes on from what it saved."""
    from gradwire.frontends.adapters.transformers import compress_trainer

    name = f"{folder}/preempted {moment}"
    trainer = trainer_of(name, save_strategy="no", enable_jit_checkpoint=True)
    compress_trainer(trainer, "topk", **TOPK)
    trainer.add_callback(on_event(MOMENTS[moment], 2, lambda: terminate(trainer)))
    trainer.train()
    saved = f"{name}/checkpoint-2"
    trainer = trainer_of(f"{name}, rest")
    compress_trainer(trainer, "topk", resume_from_checkpoint=saved, **TOPK)
    trainer.train(resume_from_checkpoint=saved)
    return {"digest": digest(trainer.model), "files": files_in(name)}


def on_event(event: str, step: int, call: Callable[[], object]) -> Any:
    """A callback of the Trainer for an event when so many steps were made."""
    from transformers import TrainerCallback

    def act(_args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == step:
            call()

    callback = TrainerCallback()
    setattr(callback, event, act)
    return callback


def terminate(trainer: Any) -> None:
    """Send SIGTERM, and wait until the Trainer will save as soon as it can."""
    (manager,) = filter(None, (getattr(each, "jit_manager", None) for each in trainer.callback_handler.callbacks))
    manager.kill_wait = 0
    signal.raise_signal(signal.SIGTERM)
    while not manager.is_checkpoint_requested:
        time.sleep(0.01)


def trials(rank: int, folder: str) -> dict[str, Any]:
    """Two trials of a search of hyperparameters: their files, and the residuals in them and at the end of each."""
    from transformers import GPT2LMHeadModel
    from transformers.trainer_utils import HPSearchBackend

    from gradwire.frontends.adapters.transformers import compress_trainer

    class Trial(dict):
        """A trial as Optuna makes it, in a form that the Trainer takes without Optuna."""

    name = f"{folder}/trials"
    trainer = trainer_of(name, steps=STEPS // 2)
    config = trainer.model.config
    trainer.model_init = lambda: GPT2LMHeadModel(config)
    trainer.hp_search_backend, trainer.hp_space = HPSearchBackend.OPTUNA, dict
    callback = compress_trainer(trainer, "topk", **TOPK)
    ends = []
    for number, rate in enumerate((0.5, 0.1)):
        trial = Trial(learning_rate=rate)
        trial.number, trial.params = number, dict(trial)
        trainer.train(trial=trial)
        ends.append(residual_of(callback.state.state_dict()))
    files = [f"{name}/run-{number}/checkpoint-{STEPS // 2}/gradwire-{rank}.pt" for number in range(2)]
    saved = [residual_of(torch.load(file, weights_only=True)["state"]) for file in files]
    return {"files": files_in(name), "saved": saved, "ends": ends}


def hosts(rank: int, folder: str) -> list[str]:
    """The files of this rank, which has a folder of its own as on a host of its own, and one that was moved away."""
    from gradwire.frontends.adapters.transformers import compress_trainer

    name = Path(f"{folder}/host {rank}")
    trainer = trainer_of(str(name), save_steps=1, save_total_limit=2)
    compress_trainer(trainer, "topk", **TOPK)
    if rank == 0:
        trainer.add_callback(on_event("on_step_end", 2, lambda: (name / "checkpoint-1").rename(name / "moved-1")))
    trainer.train()
    return files_in(str(name))


def removed(rank: int, folder: str) -> dict[str, Any]:
    """The files to delete that a callback keeps in mind where none is deleted, and those of a run after its removal."""
    from gradwire.frontends.adapters.transformers import compress_trainer

    name = f"{folder}/removed"
    trainer = trainer_of(name)
    callback = compress_trainer(trainer, "topk", **TOPK)
    trainer.train()
    written = files_in(name)
    torch.distributed.barrier()
    for file in Path(name).rglob(f"gradwire-{rank}.pt"):
        file.unlink()
    trainer.remove_callback(callback)
    trainer.train()
    return {"written": len(written), "kept in mind": callback._files, "afterwards": files_in(name)}


def files_in(folder: str) -> list[str]:
    torch.distributed.barrier()
    return sorted(file.relative_to(folder).as_posix() for file in Path(folder).rglob("gradwire*"))


def late(event: str, args: tuple[Any, ...], folder: str) -> None:
    if event == "os.mkdir" and str(args[0]) == folder:
        time.sleep(1.0)


def refused(folder: str) -> dict[str, str]:
    from accelerate import Accelerator
    from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

    from gradwire.frontends.adapters.accelerate import compress
    from gradwire.frontends.adapters.transformers import compress_trainer

    hooked = Accelerator(
        cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)]
    )
    accelerator = Accelerator(cpu=True)
    prepared = accelerator.prepare(model_of())
    compress(accelerator, prepared, "topk", **TOPK)
    os.makedirs(f"{folder}/other", exist_ok=True)
    saved = f"{folder}/unbroken/checkpoint-{STEPS // 2}"
    other = f"{folder}/other-{os.environ['RANK']}"
    shutil.copytree(saved, other)
    if os.environ["RANK"] == "1":
        Path(other, "gradwire-1.pt").unlink()

    def resume(ours: Any, theirs: Any = saved) -> None:
        trainer = trainer_of(f"{folder}/refused")
        compress_trainer(trainer, "topk", resume_from_checkpoint=ours, **TOPK)
        trainer.train(resume_from_checkpoint=theirs)

    return answers(
        {
            "not prepared": lambda: compress(accelerator, model_of()),
            "own hook": lambda: compress(hooked, prepared),
            "load": lambda: accelerator.load_state(f"{folder}/other"),
            "not told": lambda: resume(None),
            "told too much": lambda: resume(saved, None),
            "rank missing": lambda: resume(other, saved),
            "another step": lambda: resume(f"{folder}/unbroken/checkpoint-{STEPS}"),
            "early": lambda: compress_trainer(trainer_of(folder)).metrics(),
        }
    )


def alone(folder: str) -> str:
    """A process without others is not wrapped."""
    from accelerate.state import AcceleratorState, PartialState

    from gradwire.frontends.adapters.transformers import compress_trainer

    AcceleratorState._reset_state()
    PartialState._reset_state()
    os.environ.update(WORLD_SIZE="1", LOCAL_RANK="-1", RANK="0")

    def train() -> None:
        trainer = trainer_of(f"{folder}/alone")
        compress_trainer(trainer, "topk", **TOPK)
        trainer.train()

    return answers({"alone": train})["alone"]
