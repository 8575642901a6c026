"""``make`` installs with a tool that shows what is compiled, and why a build failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tools.install import progress

BACKEND = """
import sys
def build_wheel(*_, **__):
    print("fatal error: no such header")
    sys.exit(3)
"""


def installed(folder: Path) -> subprocess.CompletedProcess[str]:
    """Install what is in a folder, into an environment of its own."""
    environment = folder.parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, capture_output=True)
    command = [environment / "bin" / "python", ROOT / "tools" / "install.py", "--no-build-isolation", folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_build_that_fails_says_why_and_keeps_its_status(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "backend.py").write_text(BACKEND)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "broken"\nversion = "1"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    done = installed(folder)
    assert done.returncode == 1, done
    assert "fatal error: no such header" in done.stderr, done


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[1/81] Building CXX object CMakeFiles/_kernels.dir/csrc/calls.cc.o", "  [1/81] csrc/calls.cc for Python"),
        ("[81/81] Linking CXX shared module _kernels.so", None),
        ("Collecting torch", None),
    ],
)
def test_the_lines_of_the_compiler_are_shown(line: str, shown: str | None) -> None:
    assert progress(line) == shown
