"""A GPT-2 under the Hugging Face Trainer, with gradients of 4 bits an element.

    torchrun --standalone --nproc-per-node 2 examples/hf_trainer.py

The model is tiny and begins with random weights, so nothing is downloaded.
"""

import torch

try:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from gradwire.integrations.transformers import compress_trainer
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install '.[huggingface]'") from None


WORDS, LENGTH, STEPS = 64, 24, 20


def main() -> None:
    """Learn a few random sentences by heart."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    text = torch.randint(WORDS, (32, LENGTH))
    arguments = TrainingArguments(
        "checkpoints",
        max_steps=STEPS,
        save_steps=STEPS // 2,
        learning_rate=3e-3,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in text])
    compress = compress_trainer(trainer, "qsgd", bits=4)
    trainer.train()
    if trainer.is_world_process_zero():
        metrics = compress.metrics()
        print(f"steps {metrics['steps']} ratio {metrics['ratio']:.1f}")


if __name__ == "__main__":
    main()
