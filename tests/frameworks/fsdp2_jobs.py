"""Work of the ranks in the tests of FSDP2 under frameworks: all of it in one launch, as imports take seconds."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from tests.frameworks.huggingface_jobs import STEPS, TOPK, accelerated_loop, trainer_of
from tests.frameworks.lightning_jobs import as_torchrun, module_of, ours_of, residual_of
from tests.frameworks.lightning_jobs import trainer_of as lightning_of
from tests.house.source import ROOT
from tests.integrations.jobs import answers, batch

SEEDS = range(4)
EXAMPLES = ("accelerate_fsdp2", "lightning_fsdp2", "hf_trainer")


def everything(rank: int, folder: str) -> dict[str, Any]:
    as_torchrun(rank)
    told = {"lightning": by_lightning(folder), "refused": answers({"not sharded": not_sharded})}
    os.environ["ACCELERATE_USE_CPU"] = "true"
    told["accelerate"] = by_accelerate(folder)
    forget()
    told["trainer"] = by_trainer(folder)
    forget()
    os.chdir(folder)
    losses = {name: example(name).train for name in EXAMPLES}
    return {**told, "losses": {name: [pair(train, seed) for seed in SEEDS] for name, train in losses.items()}}


def pair(train: Any, seed: int) -> tuple[float, float, float]:
    """The last loss without compression and with it, and the ratio."""
    exact, _ = train("none", seed)
    return (exact, *train("qsgd:bits=4", seed))


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digest(model: nn.Module) -> str:
    """This rank's part of all parameters."""
    hashed = hashlib.sha256()
    for param in model.parameters():
        hashed.update(param.detach().to_local().contiguous().numpy().tobytes())
    return hashed.hexdigest()


def told_of(model: nn.Module, state: Any) -> dict[str, Any]:
    return {"digest": digest(model), "metrics": state.metrics(), "residual": residual_of(state.state_dict())}


def forget() -> None:
    """Let the next framework tell Accelerate anew how models are distributed."""
    from accelerate.state import AcceleratorState, PartialState

    AcceleratorState._reset_state()
    PartialState._reset_state()


def plugin_of() -> Any:
    from accelerate.utils import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1000)


def by_accelerate(folder: str) -> dict[str, Any]:
    """A loop, unbroken and resumed in the middle; the state made before the checkpoint is loaded, and after."""
    shard_on_cpu = example("accelerate_fsdp2").shard_on_cpu

    def loop(steps: range, load: str = "", late: bool = False) -> dict[str, Any]:
        return told_of(*accelerated_loop(shard_on_cpu(plugin_of()), steps, folder, load, late))

    rest, saved = range(STEPS // 2, STEPS), f"{folder}/accelerate"
    return {
        "unbroken": loop(range(STEPS)),
        "resumed": loop(rest, saved),
        "late": loop(rest, saved, late=True),
        "files": sorted(file.name for file in Path(saved).glob("gradwire*")),
    }


def sharded_module() -> Any:
    """The module of the Lightning tests, sharded."""

    class Sharded(type(module_of())):
        def configure_model(self) -> None:
            for layer in self.layers:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

        def training_step(self, _: Tensor, index: int) -> Tensor:
            x, y = batch(self.global_step, self.global_rank)
            return nn.functional.cross_entropy(self.layers(x), y)

    return Sharded()


def strategy() -> Any:
    from lightning.pytorch.strategies import ModelParallelStrategy

    return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)


def by_lightning(folder: str) -> dict[str, Any]:
    """A fit, unbroken, resumed from its checkpoint, and resumed without the residuals."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    def fit(name: str, ckpt: Path | None = None) -> dict[str, Any]:
        ours, module = ours_of(), sharded_module()
        saver = ModelCheckpoint(f"{folder}/{name}", filename="{step}", every_n_train_steps=4, save_top_k=-1)
        lightning_of([ours, saver], strategy=strategy()).fit(module, ckpt_path=ckpt)
        return told_of(module, ours.state)

    unbroken, saved = fit("unbroken"), Path(folder, "unbroken", "step=4.ckpt")
    resumed = fit("resumed", saved)
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        kept = torch.load(saved / "meta.pt", weights_only=False)
        torch.save({name: value for name, value in kept.items() if name != "gradwire"}, saved / "meta.pt")
    torch.distributed.barrier()
    return {"unbroken": unbroken, "resumed": resumed, "without": fit("without", saved)}


def not_sharded() -> None:
    """A module that configures nothing under the strategy that leaves sharding to it."""

    class Whole(type(module_of())):
        def configure_model(self) -> None:
            pass

    lightning_of([ours_of()], strategy=strategy()).fit(Whole())


def by_trainer(folder: str) -> dict[str, Any]:
    """Transformers' Trainer, unbroken and resumed from its checkpoint."""
    from accelerate.utils import FullyShardedDataParallelPlugin
    from transformers import Trainer

    from gradwire.frontends.adapters.transformers import compress_trainer

    class Sharding(Trainer):
        """Shards on a CPU, too."""

        def create_accelerator_and_postprocess(self) -> None:
            example("accelerate_fsdp2").shard_on_cpu(FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args))
            super().create_accelerator_and_postprocess()

    config = {
        "fsdp_version": 2,
        "transformer_layer_cls_to_wrap": "GPT2Block",
        "state_dict_type": "SHARDED_STATE_DICT",
    }

    def run(name: str, resume: Any = None) -> dict[str, Any]:
        trainer = trainer_of(f"{folder}/{name}", kind=Sharding, fsdp="full_shard", fsdp_config=config)
        callback = compress_trainer(trainer, "topk", resume_from_checkpoint=resume, **TOPK)
        trainer.train(resume_from_checkpoint=resume)
        return told_of(trainer.model_wrapped, callback.state)

    unbroken, saved = run("trainer"), f"{folder}/trainer/checkpoint-{STEPS // 2}"
    return {
        "unbroken": unbroken,
        "resumed": run("trainer resumed", saved),
        "files": sorted(file.name for file in Path(saved).glob("gradwire*")),
    }
