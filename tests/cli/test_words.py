"""The words of the command line itself: help, version, names that are nearly right, numbers that are none."""

import os
import subprocess

import pytest

from gradwire.errors import ConfigError
from gradwire.version import __version__
from gradwire_lab.experiments import models
from gradwire_lab.experiments.shapes import network_shapes
from tests.forked import Forked

# Processes that import torch: a busy machine takes minutes for each.
pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("words", [("--version",), ("-V",), ("version",)])
def test_the_version(gradwire, words):
    assert gradwire(*words).stdout == f"gradwire, version {__version__}\n"


@pytest.mark.parametrize("words", [(), ("methods",), ("bench",), ("bench", "codec")])
def test_help_is_that_of_the_command(gradwire, words):
    assert gradwire("help", *words).stdout == gradwire(*words, "--help").stdout != ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("help", "bench", "codek"), "unknown command 'codek': did you mean 'codec'?"),
        (("help", "methods", "all"), "unknown command 'all': methods has none"),
        (("bench", "codek"), "unknown command 'codek': did you mean 'codec'? Known: codec, exchange, kvstore"),
        (("check", "converge"), "unknown command 'converge': did you mean 'convergence'?"),
        (("netlab", "stat"), "unknown command 'stat': did you mean 'status'?"),
        (("demo", "--workers", "x"), "'x' is not an integer: it must be one in the range 2<=x<=64."),
        (("advise", "--compute", "soon"), "'soon' is not a number: it must be one in the range x>=0."),
        (("advise", "--compute", "nan"), "'nan' is not a number: it must be one in the range x>=0."),
        (("train", "classification", "--timeout", "x"), "'x' is not a number of seconds: it must be one in the range"),
    ],
)
def test_a_mistake_is_told_with_what_is_allowed(gradwire, words, said):
    done = gradwire(*words)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_networks_have_the_names_of_models():
    for name in models.names():
        assert network_shapes(name)
    assert network_shapes("resnet20") == list(models.facts("resnet20").shapes.values())
    with pytest.raises(ConfigError, match="did you mean 'resnet20'"):
        network_shapes("resnet2o")


@pytest.mark.parametrize(
    ("shell", "said"),
    [("bash", "complete -o nosort"), ("zsh", "#compdef gradwire"), ("fish", "complete --no-files --command gradwire")],
)
def test_a_shell_gets_its_completion(shell, said):
    environment = {**os.environ, "_GRADWIRE_COMPLETE": f"{shell}_source"}
    process = Forked(["-m", "gradwire"], environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=380)
    assert process.returncode == 0, err
    assert said in out
    assert err == ""
