"""The skeleton of a new method lacks nothing but the method: ``tools/new_method.py``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.house.source import ROOT
from tools.new_method import new_method

NAME = "nearest_cube"
MOST = 8
"""Files of a method with kernels for all engines, golden bytes among them; none of them is a list."""
PARTS = (
    "src",
    "tests",
    "docs",
    "tools",
    "csrc",
    "examples",
    *(file.name for file in ROOT.glob("*.md")),
    "pyproject.toml",
    "mkdocs.yml",
    "conftest.py",
    "lab",
    ".ci",
)
TESTED = (
    "tests/contracts",
    "tests/golden",
    "tests/ops/test_contract.py",
    "tests/ops/test_declared.py",
    "tests/core/test_registry.py",
    "tests/wire/test_page.py",
    f"tests/compressors/test_{NAME}.py",
    *(f"tests/house/test_{subject}.py" for subject in ("files", "docs", "exports", "layers")),
)
TO_WRITE = (f"NotImplementedError: write the reference of {NAME}_", f"run: python tests/golden/freeze.py {NAME}")


TOUCHED = (
    "src/gradwire/compressors",
    "src/gradwire/contrib/compressors",
    "src/gradwire/kernels",
    "tests/compressors",
    "docs",
    "CHANGELOG.md",
    "mkdocs.yml",
    "pyproject.toml",
)
"""Paths that the tool reads and writes."""
FAMILIES = sorted(folder.parent.name for folder in (ROOT / "src" / "gradwire" / "compressors").glob("*/__init__.py"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _copied(tmp_path_factory.mktemp("tree"), PARTS)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A tree of what the tool reads and writes."""
    return _copied(tmp_path, TOUCHED)


def _copied(root: Path, parts: tuple[str, ...]) -> Path:
    for part in parts:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            (root / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / part, root / part)
    return root


@pytest.fixture(scope="module")
def made(tree: Path) -> list[Path]:
    files = new_method(NAME, "levels", tree)
    _run(tree, "-m", "tests.house.tables").check_returncode()
    return files


def _run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package of the tree: without what leads an installation to the files of this one."""
    installed = [path for path in sys.path if path.endswith("site-packages")]
    places = {
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree / "lab" / "src"), str(tree), *installed]),
        "GRADWIRE_KERNELS": "reference",
    }
    return subprocess.run(
        [sys.executable, "-S", *command], cwd=tree, env=os.environ | places, capture_output=True, text=True, timeout=600
    )


def _differing(tree: Path) -> set[str]:
    """The files that are not as they are in the project."""
    here = (file for part in PARTS for file in ([tree / part] if (tree / part).is_file() else (tree / part).rglob("*")))
    found = {
        str(file.relative_to(tree)): file.read_bytes() for file in here if file.is_file() and file.suffix != ".pyc"
    }
    return {name for name, text in found.items() if not (ROOT / name).is_file() or (ROOT / name).read_bytes() != text}


def test_a_method_with_kernels_is_eight_files(tree: Path, made: list[Path]) -> None:
    golden = {f"tests/golden/{NAME}.json"}
    overview = {"docs/methods/index.md"}  # `make tables` writes its row.
    assert _differing(tree) == {str(file.relative_to(tree)) for file in made} | overview
    assert len(made) + len(golden) <= MOST


def test_what_fails_is_what_the_author_must_write(tree: Path, made: list[Path]) -> None:
    report = tree / "report.xml"
    narrow = f"{NAME} or test_registry or test_declared or test_contract.py or test_page or house"
    done = _run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-k", narrow, *TESTED)
    cases = {
        f"{case.get('classname')}.{case.get('name')}": "".join(part.itertext())
        for case in ElementTree.parse(report).iter("testcase")
        for part in case
        if part.tag in ("failure", "error")
    }
    assert any("test_golden" in name for name in cases), done.stdout[-2000:]
    assert sum("test_compressors" in name for name in cases) > 3
    assert {name: told[-1500:] for name, told in cases.items() if not any(text in told for text in TO_WRITE)} == {}


def test_the_kernels_compile(tree: Path, made: list[Path]) -> None:
    compiler = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    if compiler is None:
        pytest.skip("no C++ compiler")
    for form in ("-DGRADWIRE_TARGET=scalar", "-DGRADWIRE_TARGET=avx2", "-DGRADWIRE_SELFTEST"):
        command = [compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", "-Icsrc", form]
        file = f"src/gradwire/compressors/levels/{NAME}.cc"
        done = subprocess.run([*command, file], cwd=tree, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_a_method(small: Path, family: str) -> None:
    files = new_method(NAME, family, small)
    assert _differing(small) == {str(file.relative_to(small)) for file in files}
    assert len(files) + len({f"tests/golden/{NAME}.json"}) <= MOST
    _ruff(small, "check", *(str(file) for file in files if file.suffix == ".py"))


def test_a_method_of_the_second_tier_has_no_gpu_kernel(small: Path) -> None:
    files = new_method(NAME, "levels", small, contrib=True)
    assert _differing(small) == {str(file.relative_to(small)) for file in files}
    folder = small / "src/gradwire/contrib/compressors/levels"
    assert {file.name for file in files if file.parent == folder} == {f"{NAME}.py", f"{NAME}.cc", "ops.py"}
    assert "GRADWIRE_KERNEL(" not in (folder / f"{NAME}.cc").read_text(encoding="utf-8")
    assert "tests.ops.triton" not in (small / f"tests/compressors/test_{NAME}.py").read_text(encoding="utf-8")
    assert "from gradwire.contrib.compressors.levels import ops" in (folder / f"{NAME}.py").read_text(encoding="utf-8")
    _ruff(small, "check", *(str(file) for file in files if file.suffix == ".py"))


def test_a_name_of_the_second_tier_is_taken(small: Path) -> None:
    with pytest.raises(ValueError, match=r"NAME must be new, and there is .*randomk"):
        new_method("randomk", "levels", small)


def _ruff(tree: Path, *command: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ruff", *command], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("family", ["ternary", "cubes"])
def test_a_tree_that_ruff_refuses_is_left_as_it_was(small: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tools.new_method.SKELETON", _copied(small / "skeleton", ("tools/skeleton",)) / "tools/skeleton"
    )
    (small / "skeleton/tools/skeleton/triton.txt").write_text("import torch\n# --- what follows is wrong\nnowhere()\n")
    with pytest.raises(ValueError, match=r"which are as they were; it says:\n.*nowhere"):
        new_method(NAME, family, small)
    assert _differing(small) == set()
    assert not (small / "src/gradwire/compressors/cubes").exists()


def test_a_family_that_is_new(tree: Path, made: list[Path]) -> None:
    new_method("first_of_them", "cubes", tree)
    code = "from gradwire import registry; print(registry.build('compressors', 'first_of_them').layout((3,)).nbytes)"
    done = _run(tree, "-c", code)
    assert done.stdout == "3\n", done.stderr
    assert "          - Cubes: methods/cubes.md\n" in (tree / "mkdocs.yml").read_text(encoding="utf-8")
    _run(tree, "-m", "tests.house.tables").check_returncode()
    assert "](cubes.md#first_of_them) |" in (tree / "docs/methods/index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "family", "message"),
    [
        ("Cube", "levels", "NAME must be lower-case"),
        ("qsgd", "levels", "NAME must be new"),
        ("levels", "signs", "NAME must be new"),
        ("cube", "le-vels", "FAMILY must be lower-case"),
        ("lambda", "levels", "NAME must be lower-case"),
        ("sign", "signs", "NAME must be new: .* has sign_add_decoded, sign_encode, sign_encode_feedback"),
    ],
)
def test_a_wrong_name_is_refused(name: str, family: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        new_method(name, family)
