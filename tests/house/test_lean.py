"""``import gradwire`` loads torch, numpy and nothing that a training job does not need."""

from __future__ import annotations

import subprocess
import sys
import tomllib

from gradwire._extras import install
from tests.house.source import ROOT
from tests.once import once

HEAVY = (
    "triton",
    "click",
    "rich",
    "sklearn",
    "scipy",
    "plotly",
    "zmq",
    "msgpack",
    "hypothesis",
    "gradwire_lab",
    "gradwire.cli",
    "gradwire.testing",
    "accelerate",
    "jax",
    "keras",
    "lightning",
    "tensorboard",
    "tensorflow",
    "torchft",
    "transformers",
    "wandb",
)

FRAMEWORKS = {
    "jax": ("gradwire.jax", "jax"),
    "lightning": ("gradwire.frontends.adapters.lightning", "lightning"),
    "tensorflow": ("gradwire.tensorflow", "tensorflow"),
    "torchft": ("gradwire.frontends._torchft", "torchft"),
    "transformers": ("gradwire.frontends.adapters.transformers", "huggingface"),
    "msgpack": ("gradwire.kvstore", "kvstore"),
    "wandb": ("gradwire.frontends.adapters.wandb", "wandb"),
}
"""Package -> the module that is nothing without it, and the extra that brings it."""


WITHOUT = f"""
import importlib, os, sys
import gradwire.frontends.ddp
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


STATEMENTS = """
import torch, torch.distributed, torch.nn.parallel
import gradwire; [getattr(gradwire, name) for name in gradwire.__all__]
from gradwire_lab.experiments import models as m; [m.facts(name, small=each) for name in m.names() for each in (0, 1)]
"""


@once
def added() -> list[list[str]]:
    """The modules that each of the statements loads, one after the other in an interpreter."""
    lines = ["import sys; before = set()"]
    for statement in STATEMENTS.strip().splitlines():
        lines += [statement, "loaded = set(sys.modules); print(*loaded - before); before = loaded"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_importing_gradwire_loads_nothing_heavy_on_top_of_torch() -> None:
    _, added_by_us, _ = added()
    assert "gradwire.frontends.ddp" in added_by_us
    assert not [name for name in added_by_us if name in HEAVY or name.startswith(tuple(f"{each}." for each in HEAVY))]


def test_the_sizes_of_models_are_found_without_torchs_compiler() -> None:
    _, _, added_by_models = added()
    assert "gradwire_lab.experiments.models.gpt2" in added_by_models
    assert not [name for name in added_by_models if name.startswith(("torch._dynamo", "sympy"))]


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
    assert {"cli", "kvstore", "test", "docs"} <= set(extras)


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
        assert install(extra) in said[package]
