"""Runs with torch's hooks and with optimizers that exchange, beside those with compressed gradients."""

from __future__ import annotations

import dataclasses

from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.train import Run, train
from lab.tests.experiments.resume_jobs import brief, method_by

PLAIN = ["none", "torch_ddp", "none by compressed_step"]
FEWER = ["torch_bf16", "torch_powersgd:rank=1", "topk by compressed_step", "topk by compressed_step:every=5"]


def runs_of(texts: list[str]) -> list[Run]:
    """Twelve steps of each; the last round of an optimizer that exchanges rarely is cut short."""
    return [train(brief("classification"), method_by(text, "classification"), 1, seed=1) for text in texts]


def test_torchs_own_all_reduce_gives_the_bits_of_no_compression_and_all_are_counted_alike() -> None:
    workers = launch(2, runs_of, [*PLAIN, *FEWER])
    for runs in workers:
        found = dict(zip([*PLAIN, *FEWER], runs, strict=True))
        none, ddp, steps = (found[name] for name in PLAIN)
        assert ddp.digest == none.digest
        assert steps.digest != none.digest
        dense = none.bytes_per_step
        assert ddp.bytes_per_step == steps.bytes_per_step == dense
        assert {run.dense_bytes_per_step for run in runs} == {dense}
        bf16, powersgd, topk, rarely = (found[name].bytes_per_step for name in FEWER)
        assert bf16 == dense / 2
        assert powersgd < dense / 2
        # After steps 5 and 10, and at the end.
        assert rarely == topk * 3 / 12
    for mine, others in zip(*workers, strict=True):
        assert mine.digest == others.digest
        assert dataclasses.replace(mine.history[-1], seconds=0.0) == dataclasses.replace(
            others.history[-1], seconds=0.0
        )
