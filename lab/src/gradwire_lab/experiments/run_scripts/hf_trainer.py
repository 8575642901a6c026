"""A GPT-2 of random weights under the Hugging Face ``Trainer``."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def main() -> None:
    """Train for very long: whoever starts it ends it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "n_positions": 48, "n_embd": 128, "n_layer": 3, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    text = torch.randint(256, (512, 48))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=1_000_000,
            per_device_train_batch_size=4,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in text]).train()


if __name__ == "__main__":
    main()
