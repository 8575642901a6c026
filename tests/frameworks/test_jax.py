"""JAX and optax themselves, on two real processes."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from gradwire.testing.processes import run_ranks
from tests.frameworks.array_jobs import METHODS, check_compared
from tests.frameworks.jax_jobs import everything


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    return run_ranks(2, everything, timeout=800.0)


@pytest.mark.parametrize("method", METHODS)
def test_a_compiled_update_gives_the_bits_and_bytes_of_the_torch_path(method: str, told: list[dict[str, Any]]) -> None:
    check_compared([each["compared"][method] for each in told])


def test_training_in_a_compiled_loop_keeps_parameters_equal(told: list[dict[str, Any]]) -> None:
    trained = [each["trained"] for each in told]
    assert trained[0]["start"] == trained[1]["start"]
    assert trained[0]["end"] == trained[1]["end"] != trained[0]["start"]
    assert all(each["losses"][1] < 0.95 * each["losses"][0] for each in trained)
    assert [(each["metrics"]["steps"], each["metrics"]["nonfinite_steps"]) for each in trained] == [(40, 0)] * 2
    assert all(each["metrics"]["ratio"] > 5 for each in trained)


def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(told: list[dict[str, Any]]) -> None:
    assert [each["trained"]["resumed"] for each in told] == [True, True]
    assert [each["trained"]["without"] for each in told] == [False, False], "a weak test: residuals do not matter"


def test_parameters_of_files_are_shared(told: list[dict[str, Any]]) -> None:
    assert [each["shared"] for each in told] == [[[[0.0, 0.0], [0.0, 0.0]], 0.5, 3]] * 2


def test_bfloat16_stays_bfloat16(told: list[dict[str, Any]]) -> None:
    assert [each["bfloat16"] for each in told] == [["bfloat16", [1.5]]] * 2


def test_gradients_are_accumulated_behind_the_exchange_and_who_does_it_before_is_told(
    told: list[dict[str, Any]],
) -> None:
    one, other = (each["accumulated"]["before"] for each in told)
    # MultiSteps takes the mean of two.
    gone, waits = one["given"] + other["given"], one["waits"] + other["waits"]
    assert np.array_equal(one["moved"], other["moved"])
    assert np.allclose(2 * 2 * one["moved"] + waits, gone, atol=1e-4)
    for each in told:
        assert each["accumulated"]["before"]["said"] == []
        assert any("update 0 was thrown away" in line for line in each["accumulated"]["inside"]["said"])


def test_updates_of_adam_are_multiplied_by_what_the_noise_of_the_code_takes(told: list[dict[str, Any]]) -> None:
    one, other = (each["corrected"] for each in told)
    assert one == other
    for factor, longer, _ in one:
        assert longer == pytest.approx(factor, rel=1e-5)
        assert factor > 1.2


def test_processes_that_do_not_all_correct_are_told(told: list[dict[str, Any]]) -> None:
    assert all("variance_correction" in each["mixed"]["mixed"] for each in told), told[0]["mixed"]


REFUSED = {
    "copied": r"ConfigError: the state of an exchange cannot be copied or pickled: save state.state_dict\(\)",
    "shape": r"gradient of w must be Spec\(shape=\(64, 64\), dtype='float32'\).* got Spec\(shape=\(64, 65\)",
    "name": r"ConfigError: gradient of w must be Spec.* got None",
    "dtype": r"ConfigError: dtype of w must be float32, float16 or bfloat16, got 'int32'",
    "typo": r"ConfigError: 'topk' has no parameter 'ration': did you mean 'ratio'",
    "empty": r"ConfigError: parameters must be at least one, got none",
    "residual": "ConfigError: variance_correction must be None with a method that is wrong on average or keeps back",
    "wire": r"ConfigError: wire must be what gradwire.jax.compress makes, got GradientTransformation",
    "bucket": r"ConfigError: bucket_mb must be a number > 0, got 0",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_an_error(case: str, told: list[dict[str, Any]]) -> None:
    for each in told:
        assert re.search(REFUSED[case], each["refused"][case]), each["refused"][case]


def test_the_example_of_the_docstring_runs() -> None:
    code = "import doctest, sys, gradwire.frontends.adapters.jax as module; sys.exit(doctest.testmod(module).failed)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
