"""``gradwire check gpu``, and the same without click and rich."""

import json
import subprocess
from importlib.util import find_spec

import pytest
import torch

from tests import extras
from tests.house.source import ROOT

pytestmark = pytest.mark.timeout(400)
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")


@without_gpu
def test_without_a_gpu_it_is_one_line(gradwire):
    done = gradwire("check", "gpu")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: a GPU is needed, and torch finds none here; --interpreter compares the kernels")


@needs_triton
def test_the_interpreter_compares_every_kernel(gradwire, tmp_path):
    file = tmp_path / "gpu.json"
    done = gradwire("check", "gpu", "--interpreter", "--method", "twobit", "--json", str(file))
    assert done.exit_code == 0, done.stderr
    told = json.loads(file.read_text())
    assert told["broken"] == []
    assert told["parts"]["operations"]["compared"] > 80
    assert {row["method"] for row in told["parts"]["methods"]["rows"]} == {"twobit"}
    assert done.stdout.splitlines()[-1] == "holds"


def module(python, *words, has=()):
    """The command where nothing is installed but torch, numpy and the named extras."""
    variables = extras.variables(*has)
    # The sources are there, and nothing that their installation would bring.
    hidden = variables["GRADWIRE_TEST_MODULES"].split(",")
    variables["GRADWIRE_TEST_MODULES"] = ",".join(name for name in hidden if name != "gradwire_lab")
    variables["PYTHONPATH"] = f"{variables['PYTHONPATH']}:{ROOT / 'src'}:{ROOT / 'lab' / 'src'}"
    done: subprocess.CompletedProcess[str] = python("-m", "gradwire_lab.experiments.gpu_check", *words, **variables)
    return done


@without_gpu
def test_it_runs_where_only_torch_is(python):
    done = module(python)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("gradwire: a GPU is needed, and torch finds none here")


@needs_triton
def test_it_compares_where_only_torch_and_triton_are(python, tmp_path):
    file = tmp_path / "gpu.json"
    done = module(python, "--interpreter", "--method", "onebit", "--json", str(file), has=("triton",))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "holds"
    assert json.loads(file.read_text())["parts"]["methods"]["compared"] == 10
