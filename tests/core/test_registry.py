"""The folder is the registry."""

from pathlib import Path

import pytest

import gradwire.compressors
from gradwire import registry
from gradwire.compressors.twobit import TwoBit
from gradwire.errors import ConfigError


@pytest.mark.parametrize("kind", ["compressors", "memory", "comm"])
def test_every_file_is_registered_under_its_name(kind: str) -> None:
    folder = Path(gradwire.compressors.__path__[0]).parent / kind
    files = {path.stem for path in folder.glob("[!_]*.py")} - {"base", "simple"}
    assert set(registry.names(kind)) == files
    for name in files:
        assert registry.find(kind, name).name == name


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown compressor 'twobits': did you mean 'twobit'"):
        registry.find("compressors", "twobits")
    with pytest.raises(ConfigError, match=r"unknown strategy 'ring'.*Known: allgather, allreduce"):
        registry.find("comm", "ring")


def test_an_unknown_parameter_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="TwoBit has no parameter 'treshold': did you mean 'threshold'"):
        registry.build("compressors", "twobit", {"treshold": 1.0})
    with pytest.raises(ConfigError, match="no parameter 'x': it takes no parameters"):
        registry.build("compressors", "none", {"x": 1})


def test_a_configuration_comes_back_equal() -> None:
    assert registry.from_config("compressors", {"name": "twobit", "threshold": 0.25}) == TwoBit(0.25)
    with pytest.raises(ConfigError, match="needs a 'name'"):
        registry.from_config("compressors", {"threshold": 0.25})
