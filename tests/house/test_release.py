"""The facts that are published with the package are the same everywhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.house.source import ROOT

MANIFEST = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = MANIFEST["project"]
SOURCE: str = PROJECT["urls"]["Source"]
HOST = SOURCE.rsplit("/", 2)[0]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_repository_has_one_address() -> None:
    assert all(url == SOURCE or url.startswith(f"{SOURCE}/") for url in PROJECT["urls"].values())
    for name in ("pyproject.toml", "CITATION.cff", "SECURITY.md"):
        assert set(re.findall(rf"{HOST}/(gradwire/[\w.-]+)", text(name))) == {SOURCE.removeprefix(f"{HOST}/")}


def test_every_file_of_the_readme_is_linked_absolutely_where_an_index_shows_it() -> None:
    (rule,) = MANIFEST["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    assert rule["replacement"] == rf"]({SOURCE}/blob/main/\1)"
    relative = re.compile(r"\]\((?!https?://|#)([^)]*)\)")
    before, after = text("README.md"), re.sub(rule["pattern"], rule["replacement"], text("README.md"))
    files = {target.partition("#")[0] for target in relative.findall(before)}
    assert {"docs/install.md", "docs/methods/index.md"} <= files
    assert not [file for file in files if not (ROOT / file).exists()]
    assert not relative.findall(after)
    assert f"]({SOURCE}/blob/main/docs/optim.md#compressed_step)" in after


def test_the_citation_has_the_version_and_the_licence_of_the_package() -> None:
    assert f"\nversion: {PROJECT['version']}\n" in text("CITATION.cff")
    assert f"\nlicense: {PROJECT['license']}\n" in text("CITATION.cff")


def test_the_build_is_done_by_versions_that_do_what_is_asked_of_them() -> None:
    """A file among ``wheel.packages`` is left out before 1.0 of scikit-build-core, and nothing is said."""
    (failed,) = MANIFEST["tool"]["scikit-build"]["overrides"]
    assert any((ROOT / path).is_file() for path in failed["wheel"]["packages"].values())
    (tool,) = [each for each in map(Requirement, MANIFEST["build-system"]["requires"]) if "scikit" in each.name]
    assert "1.0.0" in tool.specifier
    assert "0.12.2" not in tool.specifier


def test_the_laboratory_has_the_licence_of_the_library() -> None:
    assert text("lab/LICENSE") == text("LICENSE")


def test_every_python_that_is_promised_is_tested_and_gets_a_wheel() -> None:
    promised = {found[1] for each in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", each))}
    assert min(promised, key=lambda each: int(each[2:])) == PROJECT["requires-python"].removeprefix(">=")
    tested = re.findall(r'\{python: "([\d.]+)", torch: "([\d.]+)"\}', text(".github/workflows/tests.yml"))
    assert {python for python, _ in tested} == promised
    pinned = re.search(r"^torch==(.*)$", text("constraints.txt"), re.MULTILINE)
    assert pinned is not None
    assert {python for python, torch in tested if torch == pinned[1]} == promised
    wheels = {f"cp{each.replace('.', '')}-*" for each in promised}
    assert set(MANIFEST["tool"]["cibuildwheel"]["build"]) >= wheels


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda file: file.stem)
def test_a_workflow_calls_targets_that_make_has(workflow: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))
    called = re.findall(r"run: make ([\w-]+)", workflow.read_text(encoding="utf-8"))
    assert called
    assert set(called) <= targets


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not on PATH")
def test_actionlint_finds_nothing_in_the_workflows() -> None:
    done = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "lab/pyproject.toml", "CITATION.cff", "CHANGELOG.md", "tools/release.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def check(tree: Path, tag: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "tools/release.py", tag], cwd=tree, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_a_release_whose_version_is_the_same_everywhere_can_be_published(tree: Path) -> None:
    version, log = PROJECT["version"], tree / "CHANGELOG.md"
    log.write_text(f"# Changelog\n\n## [Unreleased]\n\n## [{version}] - 2026-01-31\n")
    assert check(tree, f"v{version}") == (0, "the version is the same everywhere\n")


def test_the_version_of_this_tree_could_be_tagged(tree: Path) -> None:
    assert check(tree, f"v{PROJECT['version']}")[0] == 0


def test_a_release_is_refused_with_each_place_that_disagrees(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n")
    code, said = check(tree, "v9.8.7")
    assert code == 1
    assert [line.split()[0] for line in said.splitlines()] == [
        *("pyproject.toml", "lab/pyproject.toml", "lab/pyproject.toml", "CITATION.cff", "CHANGELOG.md"),
    ]
    code, said = check(tree, "9.8.7")
    assert (code, said) == (1, "the tag must be v and a version, as v1.2.3 or v1.2.3rc1, got '9.8.7'\n")
