"""A GPT-2 under the Hugging Face Trainer, with gradients of 4 bits an element.

    torchrun --standalone --nproc-per-node 2 examples/hf_trainer.py

The model is tiny and begins with random weights, so nothing is downloaded.
"""

import argparse

import torch

try:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from gradwire.frontends.adapters.transformers import compress_trainer
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install '.[huggingface]'") from None


WORDS, LENGTH, STEPS = 64, 24, 20


def train(compressor: str, seed: int = 0) -> tuple[float, float]:
    """Learn a few random sentences by heart.

    Returns:
        The loss of all sentences at the end, and how many times fewer bytes the gradients took.
    """
    torch.manual_seed(seed)
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    text = torch.randint(WORDS, (32, LENGTH))
    arguments = TrainingArguments(
        "checkpoints",
        seed=seed,
        max_steps=STEPS,
        save_steps=STEPS // 2,
        learning_rate=3e-3,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in text])
    compress = compress_trainer(trainer, compressor)
    trainer.train()
    trainer.model.eval()
    with torch.no_grad():
        text = text.to(arguments.device)
        loss = trainer.model(input_ids=text, labels=text).loss.item()
    return loss, compress.metrics()["ratio"]


def main() -> None:
    """Train, and let rank 0 say how well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compressor", default="qsgd:bits=4")
    torch.set_num_threads(1)
    loss, ratio = train(parser.parse_args().compressor)
    if torch.distributed.get_rank() == 0:
        print(f"steps {STEPS} loss {loss:.2f} ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
