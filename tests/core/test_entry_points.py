"""A compressor of another package is found by its name, in a real installation of that package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.once import once

PACKAGE = Path(__file__).parent / "outside"
SCRIPT = """
import json, sys
import torch

found = {}
import gradwire
from gradwire import catalogue, registry
from gradwire.errors import ConfigError
found["names"] = [name for name in ("halves", "topk", "broken") if name in registry.names("compressors")]
found["imported early"] = "outside_gradwire" in sys.modules
code = gradwire.compressor("halves", gain=2.0)
found["decoded"] = code.decompress(code.compress(torch.tensor([0.5, -1.0])), (2,)).tolist()
found["config"] = registry.from_config("compressors", code.to_config()) == code
found["topk"] = gradwire.compressor("topk").__class__.__module__
for name in ("broken", "misnamed", "twice"):
    try:
        gradwire.compressor(name)
    except ConfigError as error:
        found[name] = str(error)
found["declared"] = [row["name"] for row in catalogue.methods()]
print(json.dumps(found))
"""

DESCRIBED = """
import json, sys
from gradwire.cli._method_files import described_methods
rows = {each.name: [each.family, each.summary, each.parameters] for each in described_methods()}
told = {name: rows[name] for name in ("halves", "broken", "topk")}
print(json.dumps({"described": told, "described early": "outside_gradwire" in sys.modules}))
"""


@once
def told(folder: Path) -> dict[str, object]:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    # A copy: a build leaves files beside its sources.
    source = shutil.copytree(PACKAGE, folder / "source")
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True, timeout=300)
    another = folder / "another_gradwire-1.dist-info"
    another.mkdir()
    (another / "METADATA").write_text("Metadata-Version: 2.1\nName: another-gradwire\nVersion: 1\n")
    (another / "entry_points.txt").write_text("[gradwire.compressors]\ntwice = outside_gradwire:Halves\n")
    environment = os.environ | {"PYTHONPATH": str(folder)}
    found: dict[str, object] = {}
    for script in (SCRIPT, DESCRIBED):
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        found |= json.loads(done.stdout)
        found.setdefault("warnings", done.stderr.splitlines())
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return told(tmp_path_factory.mktemp("installed"))


def test_it_is_found_by_name_and_works_like_ours(found: dict[str, object]) -> None:
    assert found["names"] == ["halves", "topk", "broken"]
    assert not found["imported early"]
    assert found["decoded"] == [1.0, -2.0]
    assert found["config"]


def test_it_does_not_take_the_place_of_ours(found: dict[str, object]) -> None:
    assert found["topk"] == "gradwire.compressors.sparse.topk"
    warnings = found["warnings"]
    assert isinstance(warnings, list)
    assert warnings[0] == (
        "gradwire: the package outside-gradwire registers a compressor 'topk', which is left out: gradwire has one of"
        " this name"
    )


def test_what_cannot_be_loaded_is_one_line_each_and_all_others_are_listed(found: dict[str, object]) -> None:
    warnings, declared = found["warnings"], found["declared"]
    assert isinstance(warnings, list)
    assert isinstance(declared, list)
    beginnings = ["compressor 'broken'", "outside_gradwire:Halves", "compressor 'twice'"]
    assert all(line.startswith(f"gradwire: {begin} ") for line, begin in zip(warnings[1:], beginnings, strict=True))
    assert all(line.startswith("gradwire: ") and line.endswith("; it is left out") for line in warnings[1:])
    assert {"halves", "topk", "qsgd"} <= {*declared}
    assert not {"broken", "misnamed", "twice"} & {*declared}


def test_it_is_described_without_being_imported(found: dict[str, object]) -> None:
    described = found["described"]
    assert isinstance(described, dict)
    assert described["halves"] == [
        "outside-gradwire",
        "Send a float16 of each element, times ``gain``.",
        {"gain": "1.0"},
    ]
    assert described["broken"] == ["outside-gradwire", "", {}]
    assert described["topk"][0] == "sparse"
    assert not found["described early"]


def test_what_is_wrong_with_it_is_said_with_the_package(found: dict[str, object]) -> None:
    assert found["broken"] == (
        "compressor 'broken' of the package outside-gradwire cannot be imported: ModuleNotFoundError: No module named"
        " 'outside_gradwire.missing'; 'outside_gradwire' is not a package"
    )
    assert str(found["misnamed"]).startswith(
        "outside_gradwire:Halves of the package outside-gradwire must be a dataclass with name = 'misnamed'"
    )
    assert found["twice"] == (
        "compressor 'twice' is registered by the package another-gradwire and the package outside-gradwire: only one of"
        " them may be installed"
    )
