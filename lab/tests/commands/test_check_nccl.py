"""``gradwire check nccl``, and the same without click and rich."""

import json

import pytest
import torch

from tests import extras
from tests.house.source import ROOT

pytestmark = pytest.mark.timeout(400)
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")


@without_gpu
def test_without_a_gpu_it_is_one_line(gradwire):
    done = gradwire("check", "nccl")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: a GPU and a build of torch with NCCL are needed, and torch finds none here")


def test_other_numbers_of_ranks_are_refused(gradwire):
    done = gradwire("check", "nccl", "--rehearse", "--ranks", "8")
    assert done.exit_code == 2
    assert "--ranks must be 2, 4 or 2,4, got '8'" in done.stderr


def test_rows_are_kept_when_the_time_is_over(gradwire, tmp_path):
    file = tmp_path / "nccl.jsonl"
    done = gradwire("check", "nccl", "--rehearse", "--ranks", "2", "--minutes", "0.2", "--json", str(file))
    assert done.exit_code == 3, done.stderr
    assert done.stdout.splitlines()[-1].startswith("holds so far: another call with the same file goes on")
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert told[0]["where"]["rehearsed"] is True
    assert {row["way"] for row in told if "case" in row} <= {"rehearsed"}


@without_gpu
def test_it_runs_where_only_torch_is(python, tmp_path):
    """The sources are there, and nothing that their installation would bring."""
    variables = extras.variables()
    hidden = variables["GRADWIRE_TEST_MODULES"].split(",")
    variables["GRADWIRE_TEST_MODULES"] = ",".join(name for name in hidden if name != "gradwire_lab")
    variables["PYTHONPATH"] = f"{variables['PYTHONPATH']}:{ROOT / 'src'}:{ROOT / 'lab' / 'src'}"
    done = python("-m", "gradwire_lab.nccl.check", **variables)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("gradwire: a GPU and a build of torch with NCCL are needed")
    done = python("-m", "gradwire_lab.nccl.check", "--rehearse", "--ranks", "2", "--minutes", "0.2", **variables)
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("rehearsed over Gloo on the CPU; ")
