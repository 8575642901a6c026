"""torchtitan's own trainer and debug model under FSDP2; what it asks of an accelerator, a CPU answers here."""

import sysconfig
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

if not torch.accelerator.is_available():
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.current_device = lambda: 0
    torch.cpu.get_device_name = lambda _: "CPU"
    torch.cpu.get_device_properties = lambda _: SimpleNamespace(total_memory=2**34)
    torch.cpu.memory_stats = lambda _: {}
    torch.cpu.empty_cache = torch.cpu.reset_peak_memory_stats = lambda: None
    divide = FSDPModule.set_gradient_divide_factor

    def divide_apart(self: FSDPModule, factor: float) -> None:
        """Set a factor, which Gloo cannot multiply by while it sums."""
        divide(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = divide_apart

from datasets import Dataset
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import JobConfig
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.models.llama3 import get_train_spec
from torchtitan.protocols.train_spec import register_train_spec
from torchtitan.train import Trainer


class Letters(BaseTokenizer):  # type: ignore[misc]
    """Bytes as tokens, and 0 between two texts."""

    def encode(self, text: str, add_bos: bool = True, add_eos: bool = True) -> list[int]:
        """Return the bytes."""
        return [0] * add_bos + list(text.encode()) + [0] * add_eos

    def decode(self, tokens: list[int]) -> str:
        """Return the text."""
        return bytes(tokens).decode(errors="replace")

    def get_vocab_size(self) -> int:
        """The number of bytes that there are."""
        return 256


def read(folder: str) -> Any:
    """Read some files of Python's library, so that nothing is downloaded."""
    return Dataset.from_list([{"text": file.read_text("utf-8")} for file in sorted(Path(folder).glob("*.py"))[:24]])


def main() -> None:
    """Train for very long: whoever starts it ends it."""
    torch.set_num_threads(1)
    register_train_spec("letters", replace(get_train_spec(), build_tokenizer_fn=lambda _: Letters()))
    DATASETS["python"] = DatasetConfig(sysconfig.get_paths()["stdlib"], read, lambda sample: sample["text"])
    config = JobConfig()
    config.model.name, config.model.flavor = "letters", "debugmodel"
    config.training.dataset, config.training.steps = "python", 1_000_000
    config.training.seq_len, config.training.local_batch_size = 64, 4
    config.training.mixed_precision_param, config.debug.seed = "float32", 0
    Trainer(config).train()


if __name__ == "__main__":
    main()
