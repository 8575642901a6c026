"""``import gradwire`` loads torch, numpy and nothing that a training job does not need."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

from tests.house.source import ROOT

HEAVY = ("triton", "click", "rich", "sklearn", "scipy", "plotly", "zmq", "msgpack", "hypothesis", "gradwire.bench",
         "gradwire.cli", "gradwire.testing", "accelerate", "jax", "keras", "lightning",
         "tensorboard", "tensorflow", "transformers", "wandb")  # fmt: skip

FRAMEWORKS = {
    "jax": ("gradwire.jax", "jax"),
    "lightning": ("gradwire.integrations.lightning", "lightning"),
    "tensorflow": ("gradwire.tensorflow", "tensorflow"),
    "transformers": ("gradwire.integrations.transformers", "huggingface"),
    "msgpack": ("gradwire.kvstore", "kvstore"),
    "wandb": ("gradwire.integrations.wandb", "wandb"),
}
"""Package -> the module that is nothing without it, and the extra that brings it."""


WITHOUT = f"""
import importlib, os, sys
import gradwire
for package, (module, _) in {FRAMEWORKS!r}.items():
    child = os.fork()
    if not child:
        sys.modules[package] = None
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"{{package}}: {{error}}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Imports each module without its package, each in a process that has imported gradwire alone."""


def loaded(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_gradwire_loads_nothing_heavy_on_top_of_torch() -> None:
    added = loaded("import gradwire") - loaded("import torch, torch.distributed, torch.nn.parallel")
    assert "gradwire.integrations.ddp" in added
    assert not [name for name in added if name in HEAVY or name.startswith(tuple(f"{heavy}." for heavy in HEAVY))]


def project() -> dict[str, object]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: dict[str, object] = tomllib.load(file)["project"]
        return found


def test_the_core_depends_on_torch_and_numpy_alone() -> None:
    assert project()["dependencies"] == ["torch>=2.6", "numpy"]
    assert project()["requires-python"] == ">=3.11"


def test_the_extras_are_there() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    assert {"bench", "kvstore", "test", "docs"} <= set(extras)


def test_every_extra_is_on_the_page_that_says_how_to_install() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    assert not [extra for extra in extras if f"`{extra}`" not in page]


def test_installations_are_pinned_by_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert "torch==2.13.0" in lines
    assert all("==" in line for line in lines if line and not line.startswith("#"))


def test_a_framework_that_is_missing_is_named_with_the_extra_that_brings_it() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    assert {extra for _, extra in FRAMEWORKS.values()} <= set(extras)
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert said.keys() == FRAMEWORKS.keys(), done.stderr
    for package, (_, extra) in FRAMEWORKS.items():
        assert f"pip install 'gradwire[{extra}]'" in said[package]
