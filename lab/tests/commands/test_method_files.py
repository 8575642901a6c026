"""``--compressor FILE.py:Class`` with the processes that commands really start."""

import json
import os
import subprocess
import sys

import click
import pytest

from gradwire.cli._folder import app
from gradwire.cli.command_group import METHOD
from gradwire.kvstore.protocol.environment import SERVERS
from gradwire.method_files import VARIABLE
from gradwire_lab.experiments.records import read

SCALED_SIGN = '''
import gradwire


class ScaledSign(gradwire.SimpleCompressor):
    """The sign of each element and the mean magnitude, times a gain."""

    feedback = "required"

    def __init__(self, gain=1.0):
        super().__init__()
        self.gain = gain

    def compress(self, tensor, name):
        return [tensor >= 0, self.gain * tensor.abs().mean()], tensor.shape

    def decompress(self, tensors, ctx):
        signs, mean = tensors
        return (mean * (2.0 * signs.float() - 1.0)).view(ctx)
'''

SUITE = """
tasks = ["classification"]
methods = ["own.py:ScaledSign", "own.py:ScaledSign:gain=0.5"]
baseline = "own.py:ScaledSign"

[task.classification]
recipe = { steps = 2 }
epochs = 1
"""

WORKER = """
import torch
from gradwire import kvstore

torch.set_num_threads(1)
kv, out = kvstore.create("dist_sync", timeout=50), torch.empty(4)
kv.set_gradient_compression({"type": "ScaledSign", "gain": 2.0})
kv.init("w", torch.zeros(4))
kv.push("w", torch.tensor([1.0, 1.0, -1.0, -1.0]))
kv.pull("w", out)
print("sum", out.tolist(), flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.py").write_text(SCALED_SIGN)
    (tmp_path / "suite.toml").write_text(SUITE)
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path


def ended(folder, *arguments):
    """The output of a command in a folder, whose processes all have interpreters of their own."""
    environment = {name: value for name, value in os.environ.items() if name not in (VARIABLE, SERVERS)}
    command = [sys.executable, "-m", "gradwire", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False
    )


def params(group=app, name=()):
    """The names of all commands with their parameters."""
    ctx = click.Context(group)
    for each in group.list_commands(ctx):
        command = group.get_command(ctx, each)
        if isinstance(command, click.Group):
            yield from params(command, (*name, each))
        else:
            yield from ((" ".join((*name, each)), param) for param in command.params)


def test_every_option_that_names_a_method_takes_a_file():
    naming = {"--method", "--compressor", "--weights"}
    pairs = [(name, param) for name, param in params() if param.nargs == -1 or naming & {*param.opts}]
    found = {name: param for name, param in pairs if param.nargs == 1 or name == "methods"}
    assert {"train", "demo", "replay", "advise", "bench codec", "bench exchange", "methods", "launch"} <= {*found}
    assert all(param.type is METHOD for param in found.values())


def test_workers_of_a_training_know_the_method(folder):
    done = ended(
        folder,
        *("train", "classification", "--compressor", "own.py:ScaledSign", "--gain", "0.5", "--epochs", "1"),
        *("--recipe", "steps=2", "--results", "results.jsonl"),
    )
    assert done.returncode == 0, done.stderr
    (record,) = read(folder / "results.jsonl")
    assert record.settings.compressor == {"name": "ScaledSign", "gain": 0.5}
    assert record.identical
    assert 3.5 < record.dense_bytes_per_step / record.bytes_per_step < 4.5  # a byte an element, and the rest dense


def test_groups_of_a_sweep_side_by_side_know_the_methods_of_its_suite(folder):
    done = ended(folder.parent, "sweep", f"{folder.name}/suite.toml", "--results", "results.jsonl", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    found = {record.settings.method: record.settings.compressor for record in read(folder.parent / "results.jsonl")}
    assert found == {
        "own.py:ScaledSign": {"name": "ScaledSign"},
        "own.py:ScaledSign:gain=0.5": {"name": "ScaledSign", "gain": 0.5},
    }


def test_servers_and_workers_of_a_store_know_the_method(folder):
    done = ended(folder, "launch", "-n", "2", "--compressor", "own.py:ScaledSign", "--", sys.executable, "worker.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["sum [4.0, 4.0, -4.0, -4.0]"] * 2


def test_measurements_take_the_method(folder):
    options = ("--method", "own.py:ScaledSign", "--size", "4096", "--repeats", "1", "--json", "rows.json")
    done = ended(folder, "bench", "codec", *options)
    assert done.returncode == 0, done.stderr
    rows = json.loads((folder / "rows.json").read_text())
    assert {row["method"] for row in rows} == {"ScaledSign"}


def test_it_is_described_with_the_call_that_uses_it(folder):
    said = ended(folder, "methods", "own.py:ScaledSign").stdout
    assert said.startswith("ScaledSign: own.py, in a file of yours\n\nThe sign of each element")
    assert "Use: gradwire.compress_ddp(model, ScaledSign(gain=1.0))\n" in said
    (row,) = json.loads(ended(folder, "methods", "own.py:ScaledSign", "--json", "-").stdout)
    assert (row["name"], row["memory"]) == ("ScaledSign", "residual")


@pytest.mark.parametrize("command", [("train", "classification", "--compressor"), ("methods",)])
def test_a_wrong_file_is_one_error_of_the_option(folder, command):
    done = ended(folder, *command, "own.py:ScaledSine")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "own.py has no class 'ScaledSine': did you mean 'ScaledSign'?" in done.stderr.splitlines()[-1]
