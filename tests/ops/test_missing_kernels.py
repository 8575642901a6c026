"""Without the C++ extension everything runs, slowly, and every entry point says so once, with the remedy."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gradwire
from gradwire.kernels.native import kernels
from tests.ops.interpreters import interpret

CALLS = """
import json, sys, warnings
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
import gradwire
from gradwire import kvstore
from gradwire.kernels import native

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def linear():
    return torch.nn.Linear(8, 8)

def optimizer():
    model = linear()
    return gradwire.compress_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, "topk")

def hook():
    model = DistributedDataParallel(linear())
    model.register_comm_hook(gradwire.GradwireState(model, "twobit"), gradwire.gradwire_hook)

def sharded():
    model = linear()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return gradwire.compress_fsdp(model, "qsgd")

def stored():
    kvstore.create("device").set_gradient_compression({"type": "2bit"})

ways = {
    "compress_ddp": lambda: gradwire.compress_ddp(DistributedDataParallel(linear()), "twobit"),
    "compress_optimizer": optimizer, "gradwire_hook": hook, "compress_fsdp": sharded, "kvstore": stored,
    "Exchange": lambda: gradwire.Exchange(gradwire.compressor("onebit")),
    "none": lambda: gradwire.Exchange(gradwire.compressor("none")),
}
warned = {}
for name, way in ways.items():
    native.warn_without_kernels.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        way(), way()
    warned[name] = [(str(w.message), w.filename) for w in caught if "kernels" in str(w.message)]
dist.destroy_process_group()
print(json.dumps([gradwire.__file__, warned]))
"""


DOCTOR = "import sys; sys.argv = ['gradwire', 'doctor', '--json', '-']; from gradwire.cli.main import main; main()"
CASES = {
    "every entry point": (CALLS, {}),
    "the reference": (CALLS, {"GRADWIRE_KERNELS": "reference"}),
    "doctor": (DOCTOR, {}),
}
IMPORTED = ["torch", "torch.distributed.fsdp", "torch.distributed.device_mesh", "torch.nn.parallel", "torch._dynamo"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This package as it is installed where no compiler was found."""
    folder = tmp_path_factory.mktemp("without")
    shutil.copytree(
        Path(gradwire.__file__).parent,
        folder / "gradwire",
        ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"),
    )
    return folder


@pytest.fixture(scope="module")
def without(folder: Path) -> Callable[[str], str]:
    """The output of each of ``CASES``. -S: an editable installation would come before the folder."""
    paths = [str(folder), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    told = dict(zip(CASES, interpret(list(CASES.values()), IMPORTED, "-S", env=environment, cwd=folder), strict=True))

    def printed(case: str) -> str:
        assert told[case].returncode == 0, told[case].stderr
        return told[case].stdout

    return printed


def test_every_entry_point_warns_once_with_the_remedy_and_what_it_costs(
    without: Callable[[str], str], folder: Path
) -> None:
    pytest.importorskip("msgpack", reason="the KVStore needs gradwire[kvstore]")
    where, warned = json.loads(without("every entry point"))
    assert Path(where).is_relative_to(folder)
    assert warned.pop("none") == []
    assert {name: len(warnings) for name, warnings in warned.items()} == dict.fromkeys(warned, 1)
    for ((text, file),) in warned.values():
        assert "the C++ extension is not built" in text
        assert "install a C++ compiler" in text
        assert "-m pip install --force-reinstall --no-deps --no-cache-dir" in text
        assert "4 to 100 times as long" in text
        assert "GRADWIRE_KERNELS=reference" in text
        assert file == "<string>", "the line shown is not the caller's"


def test_the_reference_that_was_asked_for_is_not_warned_of(without: Callable[[str], str]) -> None:
    pytest.importorskip("msgpack", reason="the KVStore needs gradwire[kvstore]")
    _, warned = json.loads(without("the reference"))
    assert not any(warned.values())


@pytest.mark.skipif(kernels is None, reason="the C++ extension is not built")
def test_with_the_kernels_there_is_nothing_to_warn_of(recwarn: pytest.WarningsRecorder) -> None:
    gradwire.Exchange(gradwire.compressor("twobit"))
    assert not [warning for warning in recwarn if "kernels" in str(warning.message)]


def test_doctor_says_the_same(without: Callable[[str], str]) -> None:
    pytest.importorskip("click", reason="doctor needs gradwire[cli]")
    used = json.loads(without("doctor"))["kernels"]["in use"]
    assert used["value"] == "torch reference"
    assert "the extension is not there" in used["reason"]
    assert "install a C++ compiler" in used["reason"]
    assert "4 to 100 times as long" in used["reason"]


def test_the_page_has_the_numbers_of_the_warning() -> None:
    page = (Path(__file__).parents[2] / "docs" / "install.md").read_text(encoding="utf-8")
    assert "4 to 100 times" in page
    assert "| `twobit` | 0.13 | 5.6 | 0.08 | 4.0 |" in page
