"""The files that `make build` left in dist/: their contents, and both packages at work in environments of their own.

`make test-build` runs it. An environment is a gigabyte, and the sdist compiles: some minutes on an idle machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LONGEST = 3600  # seconds that a step may take, where the machine has other work too

pytestmark = pytest.mark.timeout(3 * LONGEST)


def the(pattern: str) -> Path:
    found = sorted(DIST.glob(pattern))
    assert len(found) == 1, f"dist/{pattern} must be one file, got {[file.name for file in found]}: make build"
    return found[0]


def inside(package: Path) -> dict[str, bytes]:
    """Name -> content; an sdist without its first folder."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(package) as sdist:
        found = {}
        for member in sdist.getmembers():
            if (file := sdist.extractfile(member)) is not None:
                found[member.name.partition("/")[2]] = file.read()
        return found


@pytest.mark.parametrize(("platform", "machine"), [("linux", "x86_64"), ("linux", "aarch64"), ("macos", "arm64")])
def test_cibuildwheel_takes_its_configuration_and_builds_what_a_release_uploads(platform: str, machine: str) -> None:
    """It reads and checks all of its options, and starts no container."""
    command = [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", "--platform", platform]
    done = subprocess.run(
        [*command, "--archs", machine], cwd=ROOT, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stderr
    system = {"linux": "manylinux", "macos": "macosx"}[platform]
    assert done.stdout.split() == [f"cp3{minor}-{system}_{machine}" for minor in (11, 12, 13)]


def test_the_wheel_holds_the_package_and_a_line_for_starts_of_python() -> None:
    files = inside(the("gradwire-*.whl"))
    tops = {name.partition("/")[0] for name in files}
    assert tops == {"gradwire", "gradwire_run.pth", f"gradwire-{PROJECT['version']}.dist-info"}
    assert len([name for name in files if re.fullmatch(r"gradwire/_kernels\..*(so|pyd)", name)]) == 1
    left_out = (".cc", ".h", ".pyc")
    assert not [name for name in files if "/tests/" in name or "results/" in name or name.endswith(left_out)]
    sources = {file.relative_to(ROOT / "src").as_posix() for file in (ROOT / "src").rglob("*.py")}
    assert {name for name in files if name.endswith(".py")} == sources


def test_the_laboratory_has_the_same_version_and_all_its_files() -> None:
    files = inside(the(f"gradwire_lab-{PROJECT['version']}-*.whl"))
    folder = ROOT / "lab" / "src"
    sources = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    sources = {name for name in sources if not name.endswith(".pyc")}
    assert {name for name in files if name.startswith("gradwire_lab/")} == sources
    assert any(name.endswith("licenses/LICENSE") for name in files)
    assert {"gradwire_lab/report/page.html", "gradwire_lab/advise/convergence.json"} <= sources
    assert set(inside(the("gradwire_lab-*.tar.gz"))) >= {"pyproject.toml", "README.md", "LICENSE"}


def test_the_sdist_holds_what_builds_and_tests_and_no_measurements() -> None:
    files = inside(the("gradwire-*.tar.gz"))
    needed = "CMakeLists.txt LICENSE README.md CHANGELOG.md CITATION.cff SECURITY.md Makefile constraints.txt"
    assert {*needed.split(), "csrc/module.cc", "conftest.py", "tests/smoke/pytest.ini"} <= set(files)
    wrong = ("benchmarks/results/", ".ci/", ".github/", "build/", "dist/", ".venv/", "lab/", "site/")
    assert not [name for name in files if name.startswith(wrong) or name.endswith((".so", ".pyc"))]


@pytest.mark.parametrize(
    ("package", "member"), [("gradwire-*.whl", r".*\.dist-info/METADATA"), ("gradwire-*.tar.gz", "PKG-INFO")]
)
def test_an_index_shows_the_readme_with_links_that_lead_somewhere(package: str, member: str) -> None:
    (found,) = [content for name, content in inside(the(package)).items() if re.fullmatch(member, name)]
    about = message_from_bytes(found)
    text = about.get_payload()
    assert about["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# gradwire")
    assert f"]({PROJECT['urls']['Source']}/blob/main/docs/install.md)" in text
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", text)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="manylinux is Linux")
def test_the_wheel_runs_on_older_systems_and_brings_no_openmp() -> None:
    wheel = the("gradwire-*.whl")
    assert re.search(r"-manylinux_2_\d+_\w+|-manylinux2014_\w+", wheel.name)
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONGEST).stdout
    assert "manylinux" in shown
    assert not [name for name in inside(wheel) if "libgomp" in name]


@pytest.fixture(scope="module", params=["gradwire-*.whl", "gradwire-*.tar.gz"], ids=["wheel", "sdist"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of an environment with one of the two, and pytest."""
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=LONGEST)
    python = folder / "venv" / "bin" / "python"
    install(python, str(the(request.param)), "pytest")
    yield python
    shutil.rmtree(folder)


def install(python: Path, *what: str) -> None:
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*command, *what], check=True, timeout=LONGEST, cwd=python.parents[2])


def run(python: Path, *arguments: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(python), *arguments],
        cwd=python.parents[2],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        env={**clean, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_smoke_tests_pass_where_it_is_installed(installed: Path) -> None:
    where = run(installed, "-c", "import gradwire; print(gradwire.__file__)").strip()
    assert Path(where).is_relative_to(installed.parents[1])
    smoke = installed.parents[2] / "smoke"
    shutil.copytree(ROOT / "tests" / "smoke", smoke, dirs_exist_ok=True)
    assert " passed" in run(installed, "-m", "pytest", "-c", str(smoke / "pytest.ini"), str(smoke))


def test_the_laboratory_joins_it_and_its_demonstration_runs(installed: Path) -> None:
    install(installed, str(the("gradwire_lab-*.whl")))
    shown = run(installed, "-m", "gradwire", "demo", "--epochs", "1")
    assert "bit-identical" in shown
