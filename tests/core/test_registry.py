"""The folder is the registry."""

import importlib
import inspect
import pkgutil

import pytest

import gradwire.compressors
from gradwire import registry
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.compressors.transforms.eden import EDEN
from gradwire.engine.settings import Settings
from gradwire.errors import ConfigError
from gradwire.memory.preconditioned import Preconditioned
from gradwire.memory.residual import Residual


@pytest.mark.parametrize(
    ("kind", "folder"), [("compressors", "compressors"), ("memory", "memory"), ("strategies", "engine.strategies")]
)
def test_every_file_is_registered_under_its_name(kind: str, folder: str) -> None:
    for tier, top in (("first", f"gradwire.{folder}"), ("second", f"gradwire.contrib.{kind}")):
        package = importlib.import_module(top)
        modules = [each.name for each in pkgutil.walk_packages(package.__path__, f"{top}.") if not each.ispkg]
        # Kernels for a GPU need Triton, and have no class.
        named = {
            name.rpartition(".")[2]
            for name in modules
            if not name.endswith(".triton")
            for _, cls in inspect.getmembers(importlib.import_module(name), inspect.isclass)
            if cls.__module__ == name and isinstance(getattr(cls, "name", None), str)
        }
        assert {name for name in registry.names(kind) if registry.tier(kind, name) == tier} == named
        for name in named:
            assert registry.find(kind, name).name == name


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown compressor 'twobits': did you mean 'twobit'"):
        registry.find("compressors", "twobits")
    with pytest.raises(ConfigError, match="unknown compressor '2bit': that is MXNet's name of 'twobit'"):
        registry.find("compressors", "2bit")
    with pytest.raises(ConfigError, match=r"unknown strategy 'ring'.*Known: allgather, allreduce"):
        registry.find("strategies", "ring")


def test_an_unknown_parameter_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="TwoBit has no parameter 'treshold': did you mean 'threshold'"):
        registry.build("compressors", "twobit", {"treshold": 1.0})
    with pytest.raises(ConfigError, match="no parameter 'x': it takes no parameters"):
        registry.build("compressors", "none", {"x": 1})


def test_a_configuration_comes_back_equal() -> None:
    assert registry.from_config("compressors", {"name": "twobit", "threshold": 0.25}) == TwoBit(0.25)
    with pytest.raises(ConfigError, match="needs a 'name'"):
        registry.from_config("compressors", {"threshold": 0.25})


def test_parameters_may_stand_behind_the_name_wherever_a_name_is_given() -> None:
    exchange = gradwire.Exchange(gradwire.compressor("eden:bits=0.5", block=1024), memory="preconditioned:beta=0.9")
    assert exchange.methods.compressor == EDEN(bits=0.5, block=1024)
    assert exchange.methods.memory == Preconditioned(beta=0.9)
    settings, _ = Settings.split({"overrides": {"*.bias": "qsgd:bits=8,norm=l2"}})
    assert settings.policy().overrides == {"*.bias": QSGD(bits=8, norm="l2")}
    assert registry.build("strategies", "oktopk:period=8").period == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eden:bits", "a parameter is written NAME=VALUE, got 'bits'"),
        ("eden:bit=1", "EDEN has no parameter 'bit': did you mean 'bits'"),
        ("eden:bits=2,bits=1", "eden.bits must be given once, beside 2, got 1"),
        ("edn:bits=1", "unknown compressor 'edn': did you mean 'eden'"),
        ("eden:bits=1", "bits of 'eden' is given twice: 1 in its name, and 2"),
        ("eden:bits=9", "EDEN.bits must be 1, 2, 3 or 4"),
        ("eden:name=topk", "eden.name must be left out, got 'topk'"),
    ],
)
def test_what_is_wrong_behind_a_name_is_told(text: str, said: str) -> None:
    params = {"bits": 2} if text == "eden:bits=1" else {}
    with pytest.raises(ConfigError, match=said):
        gradwire.compressor(text, **params)


@pytest.mark.parametrize(
    "config",
    [
        {"name": "ef21:inner=" * 100 + "topk"},
        {"name": "eden:bits=" + "[" * 3900},
        {"name": "ef21", "inner": "ef21:inner=topk"},
    ],
)
def test_a_configuration_has_no_parameters_in_a_name(config: dict) -> None:
    """It may come from a stranger, whose values the reader of frames has checked only where they are values."""
    with pytest.raises(ConfigError, match=r"unknown compressor|inner of 'ef21' must have no parameters"):
        registry.from_config("compressors", config)


def test_a_number_that_python_does_not_read_is_an_error_of_ours() -> None:
    for value in ("1" * 5000, "[" * 5000):
        with pytest.raises(ConfigError, match=r"EDEN\.bits must be"):
            gradwire.compressor("eden:bits=" + value)


def test_a_narrow_residual_is_one_with_parameters_too() -> None:
    exchange = gradwire.Exchange(gradwire.compressor("topk"), memory="residual:beta=0.9", residual_dtype="bfloat16")
    assert exchange.methods.memory == Residual(beta=0.9, dtype="bfloat16")
