"""A mistake ends a plain script with one error: the user's own lines, none of ours, and the remedy in its last line."""

import os
import subprocess
import sys

import pytest

import gradwire
from gradwire._short_traceback import ShortTracebacks

BEGIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
layer = torch.nn.Linear(64, 64)
model = DistributedDataParallel(layer)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
"""

MISTAKES = {
    'gradwire.compress_ddp(model, "qsdg")': "unknown compressor 'qsdg': did you mean 'qsgd'?",
    'gradwire.compress_ddp(model, "qsgd", bit=4)': "'qsgd' has no parameter 'bit': did you mean 'bits'?",
    'gradwire.compress_ddp(model, "qsgd", bits=40)': "QSGD.bits must be an integer in [2, 8], got 40",
    'gradwire.compress_ddp(model, "topk:ratio")': "a parameter is written NAME=VALUE, got 'ratio'",
    'gradwire.compress_ddp(layer, "qsgd")': "model must be a torch.nn.parallel.DistributedDataParallel, got Linear",
    'gradwire.compress_ddp(model, "qsgd", memory="residul")': "unknown memory 'residul': did you mean 'residual'?",
    'gradwire.compress_ddp(model, "qsgd", strategy="gather")': "unknown strategy 'gather'",
    'gradwire.compress_ddp(model, "qsgd", process_group="gloo")': "process_group must be None or a group of torch",
    'gradwire.compress_ddp(model, "topk").load_state_dict({})': "state must be what state_dict() gave",
    'gradwire.compress_fsdp(layer, "qsgd")': "model must be a module after fully_shard, got Linear",
    "gradwire.optim.DiLoCo.sparse_loco(optimizer, every=0)": "DiLoCo.every must be an integer >= 1, got 0",
    "gradwire.CompressedStep(optimizer, every=0)": "CompressedStep.every must be an integer >= 1, got 0",
    "gradwire.CompressedStep(optimizer, process_group=3)": "process_group must be None or a group of torch.distributed",
    'gradwire.from_params({"compressor": "nope"})': "unknown compressor 'nope'",
}

SHOWN = """
import traceback

for mistake in MISTAKES:
    try:
        exec(compile(mistake, "script.py", "exec"))
    except gradwire.GradwireError as error:
        print("".join(traceback.format_exception(error)), end="\\0")
    else:
        print("no error", end="\\0")
"""

OWN = """
class Own(gradwire.SimpleCompressor):
    def compress(self, tensor, name):
        return shrink(tensor), None
    def decompress(self, payload, context):
        return payload[0]

def shrink(tensor):
    raise error

def train(raised):
    global error
    error = raised
    gradwire.compress_ddp(model, Own())
"""
"""A compressor of the user's, called from inside, that fails with an error of his choice."""


def run(script, **environment):
    kept = {name: value for name, value in os.environ.items() if name != "GRADWIRE_TRACEBACK"}
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**kept, **environment},
    )


def ours(text):
    """The lines of a traceback that name a file of gradwire or torch."""
    package = os.path.dirname(gradwire.__file__)
    return [line for line in text.splitlines() if "File" in line and (package in line or "/torch/" in line)]


@pytest.fixture(scope="module")
def shown():
    done = run(BEGIN + f"MISTAKES = {[*MISTAKES]!r}\n" + SHOWN)
    assert done.returncode == 0, done.stderr
    return dict(zip(MISTAKES, done.stdout.split("\0"), strict=False))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_error_with_its_remedy(shown, mistake):
    text = shown[mistake]
    assert text.count("Traceback (most recent call last)") == 1, text
    assert "During handling of" not in text
    assert "direct cause of" not in text
    assert text.splitlines()[-1].startswith("gradwire.errors.ConfigError: "), text
    assert MISTAKES[mistake] in text.splitlines()[-1]
    assert 'File "script.py", line 1' in text
    assert not ours(text)


def test_a_script_ends_with_its_own_line_alone():
    done = run(BEGIN + 'gradwire.compress_ddp(model, "qsdg")')
    assert done.returncode == 1
    assert 'File "<string>", line' in done.stderr
    assert "unknown compressor 'qsdg': did you mean 'qsgd'?" in done.stderr
    assert not ours(done.stderr)


def test_every_frame_is_shown_on_demand():
    done = run(BEGIN + 'gradwire.compress_ddp(model, "qsdg")', GRADWIRE_TRACEBACK="full")
    assert len(ours(done.stderr)) > 2, done.stderr
    assert "unknown compressor 'qsdg'" in done.stderr


def test_an_error_of_the_users_own_code_keeps_its_frames():
    done = run(BEGIN + OWN + 'train(KeyError("mine"))')
    assert "in shrink" in done.stderr, done.stderr
    assert "KeyError: 'mine'" in done.stderr
    done = run(BEGIN + OWN + 'train(gradwire.ConfigError("mine"))')
    assert "in shrink" in done.stderr, done.stderr
    assert "ConfigError: mine" in done.stderr


def test_every_public_function_is_short():
    long = {
        name
        for name in gradwire.__all__
        if callable(each := getattr(gradwire, name))
        and not hasattr(each, "__wrapped__")
        and not (isinstance(each, type) and issubclass(each, (ShortTracebacks, Exception)))
    }
    # torch calls the hook, and turns its errors into one of its own; compressors are checked by the function that takes
    # them, which is short. Making an exchange is short, too, but its steps are not wrapped, because each call counts.
    assert long == {"Compressor", "Exchange", "MultiRound", "SimpleCompressor", "gradwire_hook"}
