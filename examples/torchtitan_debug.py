"""torchtitan's own trainer and debug model, with gradients of 4 bits an element under FSDP2.

    torchrun --standalone --nproc-per-node 2 examples/torchtitan_debug.py

It needs ``pip install 'torchtitan>=0.2.2,<0.3'``. The model reads Python's standard library, letter by letter, so that
nothing is downloaded. What torchtitan asks of an accelerator, a CPU answers here.
"""

import argparse
import os
import sysconfig
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

import gradwire

if not torch.accelerator.is_available():
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.current_device = lambda: 0
    torch.cpu.get_device_name = lambda _: "CPU"
    torch.cpu.get_device_properties = lambda _: SimpleNamespace(total_memory=2**34)
    torch.cpu.memory_stats = lambda _: {}
    torch.cpu.empty_cache = torch.cpu.reset_peak_memory_stats = lambda: None

try:
    from datasets import Dataset
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.config import JobConfig
    from torchtitan.hf_datasets import DatasetConfig
    from torchtitan.hf_datasets.text_datasets import DATASETS
    from torchtitan.models.llama3 import get_train_spec
    from torchtitan.protocols.train_spec import register_train_spec
    from torchtitan.train import Trainer
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install 'torchtitan>=0.2.2,<0.3'") from None


class Letters(BaseTokenizer):
    """Bytes as tokens, and 0 between two texts."""

    def encode(self, text: str, add_bos: bool = True, add_eos: bool = True) -> list[int]:
        return [0] * add_bos + list(text.encode()) + [0] * add_eos

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def get_vocab_size(self) -> int:
        return 256


def read(folder: str) -> Dataset:
    """The text of some of the files."""
    return Dataset.from_list([{"text": file.read_text("utf-8")} for file in sorted(Path(folder).glob("*.py"))[:24]])


def train(compressor: str, seed: int = 0, steps: int = 30) -> tuple[float, float]:
    """Train the debug model.

    Returns:
        This worker's loss on the text that comes next, and how many times fewer bytes the gradients took.
    """
    name = f"llama3 with {compressor}, seed {seed}"
    register_train_spec(name, replace(get_train_spec(), build_tokenizer_fn=lambda _: Letters()))
    DATASETS["python"] = DatasetConfig(sysconfig.get_paths()["stdlib"], read, lambda sample: sample["text"])
    config = JobConfig()
    config.model.name, config.model.flavor = name, "debugmodel"
    config.training.dataset, config.training.steps, config.debug.seed = "python", steps, seed
    config.training.seq_len, config.training.local_batch_size = 64, 4
    config.training.mixed_precision_param = "float32"
    config.lr_scheduler.warmup_steps = steps // 5
    trainer = Trainer(config)
    states = [gradwire.compress_fsdp(part, compressor) for part in trainer.model_parts]
    trainer.train()
    ratio, (model,) = states[0].metrics()["ratio"], trainer.model_parts
    with torch.no_grad():
        losses = [
            nn.functional.cross_entropy(model(inputs["input"]).flatten(0, 1), labels.flatten()).item()
            for (inputs, labels), _ in zip(trainer.dataloader, range(8), strict=False)
        ]
    trainer.close()
    dist.destroy_process_group()
    return sum(losses) / len(losses), ratio


def main() -> None:
    """Train, and let rank 0 say how well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compressor", default="qsgd:bits=4")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loss, ratio = train(args.compressor, args.seed)
    if os.environ["RANK"] == "0":
        print(f"loss {loss:.2f} ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
