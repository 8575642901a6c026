"""Checks of what must work wherever the package is installed, from a wheel or an sdist, with pytest and no other
extra."""

import importlib.resources
import os
import subprocess
import sys
from importlib.metadata import files, metadata, version

import pytest
import torch

import gradwire
from gradwire import registry
from gradwire.kernels import kernel_info
from gradwire.vocabulary import Key

SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gradwire
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
state = gradwire.compress_ddp(model, "topk", ratio=0.1, min_numel=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 64) + dist.get_rank()).square().mean().backward()
    optimizer.step()
weights = [torch.zeros(64, 64) for _ in range(2)]
dist.all_gather(weights, model.module.weight.detach())
assert torch.equal(*weights)
assert state.metrics()["ratio"] > 3, state.metrics()
dist.destroy_process_group()
"""


def test_the_metadata_are_those_of_this_package() -> None:
    about = metadata("gradwire")
    assert gradwire.__version__ == version("gradwire") == about["Version"]
    assert about["License-Expression"] == "Apache-2.0"
    assert "](docs/" not in str(about.get_payload() or about["Description"])
    assert any(str(file).endswith("licenses/LICENSE") for file in files("gradwire") or ())


@pytest.mark.skipif("GRADWIRE_KERNELS" in os.environ, reason="the reference was asked for")
def test_the_kernels_are_loaded() -> None:
    assert kernel_info()["loaded"], kernel_info()["reason"]


@pytest.mark.parametrize("name", registry.names("compressors"))
def test_a_compressor_sends_what_it_says_or_says_why_not(name: str) -> None:
    compressor, x = registry.build("compressors", name), torch.linspace(-1, 1, 4096).reshape(64, 64)
    if isinstance(compressor, gradwire.MultiRound):
        pytest.skip("a method of several rounds needs a group")
    layout, key = compressor.layout(x.shape), Key()
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    compressor.encode(x, payload, compressor.init_state(x.shape, key, x.device), key)
    out = torch.zeros_like(x)
    compressor.add_decoded(payload, out)
    assert torch.isfinite(out).all()
    assert out.any()


def test_two_workers_train_and_stay_the_same(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


def test_the_types_came_along() -> None:
    assert importlib.resources.files("gradwire").joinpath("py.typed").is_file()
