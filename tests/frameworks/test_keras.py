"""Keras on TensorFlow itself, on two real processes."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.frameworks.array_jobs import METHODS, check_compared
from tests.frameworks.keras_jobs import everything
from tests.frameworks.keras_lives_jobs import continued


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("keras"))


@pytest.fixture(scope="module")
def told(folder: str) -> list[dict[str, Any]]:
    return run_ranks(2, everything, folder, timeout=800.0)


@pytest.mark.parametrize("method", METHODS)
def test_the_inner_optimizer_gets_the_bits_and_bytes_of_the_torch_path(method: str, told: list[dict[str, Any]]) -> None:
    check_compared([each["compared"][method] for each in told])


def test_fit_begins_and_ends_with_equal_parameters(told: list[dict[str, Any]]) -> None:
    trained = [each["trained"] for each in told]
    assert trained[0]["before"] != trained[1]["before"]
    assert trained[0]["end"] == trained[1]["end"]
    assert all(each["losses"][-1] < 0.9 * each["losses"][0] for each in trained)
    assert [(each["metrics"]["steps"], each["metrics"]["nonfinite_steps"]) for each in trained] == [(30, 0)] * 2
    assert all(each["metrics"]["ratio"] > 5 for each in trained)


def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(told: list[dict[str, Any]]) -> None:
    for each in told:
        trained = each["trained"]
        assert trained["resumed"] == trained["end"]
        assert trained["without"] != trained["end"], "a weak test: residuals do not matter"


def test_residuals_follow_the_loss_scale(told: list[dict[str, Any]]) -> None:
    # Scales are powers of two, so nothing is rounded by them.
    for each in told:
        assert each["scaled"][0] == each["scaled"][1] == told[0]["scaled"][0]


def test_an_overflow_on_one_process_is_a_step_that_all_skip(told: list[dict[str, Any]]) -> None:
    for each in told:
        half = each["half"]
        assert half["scales"] == [1024.0] * 3 + [512.0] * 3
        assert half["residuals"][3] == half["residuals"][2] != half["residuals"][4]
        assert half["weights"][3] == half["weights"][2] != half["weights"][4]
        assert half["weights"] == told[0]["half"]["weights"]
        assert (half["metrics"]["steps"], half["metrics"]["nonfinite_steps"]) == (6, 1)
        assert half["metrics"]["ratio"] > 3


def test_it_goes_through_keras_serialisation(told: list[dict[str, Any]]) -> None:
    assert told[0]["config"] == ["DistributedOptimizer", "Adam", 0.25, True, {"min_numel": 7}]


def test_a_variable_that_no_process_used_is_left_alone(told: list[dict[str, Any]]) -> None:
    for each in told:
        for case in ("compiled", "plain"):
            assert each["unused"][case] == {"moved": [True, False, True], "kept": True, "error": "nothing was raised"}
    # A compiled step cannot hand over a gradient that was not there when it was traced.
    assert told[0]["unused"]["apart"]["error"] == "nothing was raised"
    assert (
        "gradients must be given by all processes or by none in a compiled step" in told[1]["unused"]["apart"]["error"]
    )


OUTSIDE = r"ConfigError: optimizer must be around a LossScaleOptimizer, not in one: DistributedOptimizer\(LossScale"


@pytest.mark.parametrize("how", ["plain", "compiled"])
def test_steps_of_adam_are_multiplied_by_what_the_noise_of_the_code_takes(how: str, told: list[dict[str, Any]]) -> None:
    (factor, longer, bits), other = (each["corrected"][how] for each in told)
    assert other == (factor, longer, bits)
    assert longer == pytest.approx(factor, rel=1e-4)
    assert factor > 1.2
    assert told[0]["corrected"]["config"] is True
    assert told[0]["corrected"]["least"] == 0.0, "a constraint holds after the longer step, too"


REFUSED = {
    "torch": r"ConfigError: optimizer must be a Keras optimizer, got 'SGD'",
    "typo": r"ConfigError: 'topk' has no parameter 'ration': did you mean 'ratio'",
    "dtype": r"ConfigError: dtype of d must be float32, float16 or bfloat16, got 'float64'",
    "mixed": r"ConfigError: optimizer must be a LossScaleOptimizer under mixed_float16, got 'SGD'",
    "correction": r"ConfigError: variance_correction must be False with an optimizer that .*, got 'SGD'",
    "averaged": "ConfigError: variance_correction must be False with use_ema",
    "residual": "ConfigError: variance_correction must be None with a method that is wrong on average or keeps back",
    "scaled outside": OUTSIDE,
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_an_error(case: str, told: list[dict[str, Any]]) -> None:
    for each in told:
        assert re.search(REFUSED[case], each["refused"][case]), each["refused"][case]


def test_the_example_of_the_docstring_runs() -> None:
    module = "gradwire.frontends.adapters.tensorflow"
    code = f"import doctest, sys, {module} as module; sys.exit(doctest.testmod(module).failed)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_model_that_fit_or_a_loop_makes_trains_as_one_made_before(told: list[dict[str, Any]]) -> None:
    late = [each["lives"]["late"] for each in told]
    assert [each[way]["steps"] for each in late for way in each] == [4] * 6
    for each in late:
        assert each["by fit"] == each["before"] == late[0]["before"]
        # A loop has no model of Keras that would tell what is frozen, and says so.
        assert each["in a loop"]["trained"] == late[0]["in a loop"]["trained"]
    assert [each[way]["said"] for each in late for way in ("before", "by fit")] == [[]] * 4
    assert late[0]["in a loop"]["said"] == []
    assert "and those that are not trained are still its own" in late[1]["in a loop"]["said"][0]


def test_frozen_layers_of_a_loop_are_copied_where_the_optimizer_is_told_of_them(told: list[dict[str, Any]]) -> None:
    one, other = (each["lives"]["began"] for each in told)
    assert one["asked"] == other["asked"]
    assert one["asked"]["said"] == one["not asked"]["said"] == []
    assert one["not asked"]["trained"] == other["not asked"]["trained"]
    (said,) = other["not asked"]["said"]
    assert "gradient of this step is of its own, and those that are not trained are still its own" in said
    assert "call optimizer.build(model.weights) before the first step" in said


@pytest.mark.parametrize("way", ["loaded", "copied", "compiled again"])
def test_a_state_goes_on_in_a_model_that_keras_loaded_or_copied(way: str, told: list[dict[str, Any]]) -> None:
    for each in told:
        saved = each["lives"]["saved"]
        assert saved[way] == saved["unbroken"]
        assert saved["without"] != saved["unbroken"], "a weak test: residuals do not matter"
        assert saved["momenta"]
        # What Keras loads or copies goes on under its names; a model that is compiled anew has others.
        assert saved["names"][way] == (way != "compiled again")
        assert re.search("ConfigError: state has .* not the model's", saved["another model"])


def test_a_state_goes_on_in_a_model_that_another_process_loads(told: list[dict[str, Any]], folder: str) -> None:
    assert run_ranks(2, continued, folder, timeout=400.0) == [each["lives"]["saved"]["unbroken"] for each in told]


def test_a_model_of_half_precision_is_loaded_as_it_was_saved(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert each["lives"]["half"] == {"kinds": ["ScaledDistributedOptimizer", "LossScaleOptimizer"], "same": True}


def test_variables_of_tensorflow_itself_are_exchanged(told: list[dict[str, Any]]) -> None:
    assert [each["lives"]["own variables"] for each in told] == [[["Variable:0", "Variable:0~1"], [0.5], [0.0]]] * 2


XLA = "jit_compile must be False in model.compile or tf.function, because XLA cannot call Python, got True"
LIVES_REFUSED = {
    "xla": XLA,
    "xla in a loop": XLA,
    "unfrozen": r"ConfigError: variables must be those that the optimizer was built for: make another one .* got \['",
    "frozen apart": r"GroupError: .*untrained",
    "schedule": "ConfigError: schedule of a saved optimizer must be left out, .* load with compile=False",
    "copied state": "ConfigError: the state of an exchange cannot be copied",
}


@pytest.mark.parametrize("case", LIVES_REFUSED)
def test_a_life_that_cannot_be_is_an_error(case: str, told: list[dict[str, Any]]) -> None:
    for each in told:
        assert re.search(LIVES_REFUSED[case], each["lives"]["refused"][case]), each["lives"]["refused"][case]
