"""Thresholds that follow the gradient, through DDP's rebuilt buckets and in a plain loop."""

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations.jobs import loss_of, model_of, train_each, train_loop

STEPS = 50
AUTO = {"twobit": {"threshold": "auto"}, "strom": {"threshold": "auto"}, "threshold": {"v": "auto"}}
OPTIONS = {name: {"min_numel": 128, **params} for name, params in AUTO.items()}


@pytest.mark.parametrize("strategy", [None, "two_phase"])
def test_fifty_steps_of_ddp_end_bit_identical_and_as_good_as_plain(strategy):
    """Two per cent of a small network's elements, sent late, make four fifths of the progress in fifty steps."""
    chosen = OPTIONS if strategy is None else {"twobit": {**OPTIONS["twobit"], "strategy": strategy}}
    results = run_ranks(2, train_each, STEPS, {"plain": {}, **chosen})
    start, plain = loss_of(model_of()), results[0]["plain"]["loss"]
    for name in chosen:
        assert len({result[name]["digest"] for result in results}) == 1
        assert start - results[0][name]["loss"] > 0.8 * (start - plain) > 1.0
        assert results[0][name]["metrics"]["ratio"] > 4


def test_a_plain_loop():
    results = run_ranks(2, train_loop, "twobit", STEPS, OPTIONS["twobit"])
    assert len({result["digest"] for result in results}) == 1
    assert results[0]["loss"] < 0.5 * loss_of(model_of())
