"""Every block and every command of the documentation does what its page says, where that page has installed it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch.distributed as dist

from gradwire.cli._folder import app
from gradwire.testing.processes import run_ranks
from tests import extras
from tests.cli.test_extras import CALLS
from tests.docs import stage
from tests.docs.blocks import Block, apply, blocks, indented, of, pages, parse
from tests.docs.launcher import DEADLINE, Programs
from tests.house.source import ROOT

FATES = {"change", "file", "install", "python", "shell", "skipped", "text"}
RUNS = {"change", "file", "python", "shell"}
RUNNING = [page for page in pages() if any(block.fate in RUNS for block in blocks(page))]


@pytest.mark.parametrize("page", pages())
def test_every_block_is_understood(page: str) -> None:
    assert not {str(block): block.fate for block in blocks(page) if block.fate not in FATES}
    for block in blocks(page):
        if block.fate in ("file", "python") or block.language == "python":
            compile(block.python, str(block), "exec")
    assert not list(indented(page)), f"{page}: fence the blocks that begin in these lines, as sh, python or text"


@pytest.mark.parametrize("page", pages())
def test_nothing_runs_above_the_line_that_installs_it(page: str) -> None:
    early = [block for block in blocks(page) if block.fate in RUNS | {"skipped"} and block.extras is None]
    # make installs what it needs.
    wanting = [str(block) for block in early if not all(words[0] == "make" for words in block.commands)]
    assert not wanting, 'above them stands no ```sh title="install"'


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", RUNNING)
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    """Its commands, one after the other in one folder, and then its Python, in one process on each of two workers."""
    for name in ("examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    for number, block in enumerate(blocks(page)):
        if block.fate in ("change", "file"):
            apply(block, tmp_path)
        elif block.fate == "shell":
            run_shell(block, tmp_path, number)
    run_python([block for block in blocks(page) if block.fate == "python"], tmp_path)


def run_shell(block: Block, folder: Path, number: int) -> None:
    programs = folder / f".programs-{number}"
    programs.mkdir()
    environment = {**os.environ, **extras.variables(*block.extras or ()), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    with Programs(programs, extras.hidden(*block.extras or ())):
        done = subprocess.run(
            ["bash", "-eu", "-c", block.code],
            cwd=folder,
            env=environment,
            text=True,
            capture_output=True,
            timeout=DEADLINE + 60,
        )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


def run_python(found: list[Block], folder: Path) -> None:
    steps, stores = [], []
    for block in found:
        begins = block.alone or not steps
        stores += [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)] if begins else []
        absent = extras.hidden(*block.extras or ())
        steps.append((str(block), block.python, stores[-1].port if begins else None, absent))
    for printed in run_ranks(2, stage.run_blocks, steps, str(folder), timeout=DEADLINE) if steps else ():
        silent = [str(block) for block, text in zip(found, printed, strict=True) if "print(" in block.code and not text]
        assert not silent


TESTED = {
    "advise": "lab/tests/commands/test_advise.py",
    "bench codec": "lab/tests/commands/test_bench.py",
    "bench exchange": "lab/tests/commands/test_bench_exchange.py",
    "bench kvstore": "lab/tests/commands/test_bench_kvstore.py",
    "bench launches": "lab/tests/commands/test_bench_launches.py",
    "check": "lab/tests/commands/test_check.py",
    "demo": "lab/tests/demo",
    "launch": "tests/cli/test_launch.py",
    "meeting": "tests/cli/test_meeting.py",
    "netlab": "lab/tests/commands/test_netlab.py",
    "replay": "lab/tests/commands/test_replay.py",
    "report": "lab/tests/commands/test_report.py",
    "run": "tests/run/test_scripts.py",
    "server": "tests/kvstore",
    "sweep": "lab/tests/commands/test_sweep.py",
    "train": "lab/tests/commands/test_train.py",
    "try": "lab/tests/commands/test_try.py",
    "keygen": "tests/kvstore",
}
"""Commands that need or take more than the tests of pages have, by their first words, and the tests that run them."""


def test_the_tests_of_long_commands_are_there() -> None:
    assert not [place for place in TESTED.values() if not (ROOT / place).exists()]


@pytest.mark.parametrize("block", [block for block in of("skipped") if block.language == "sh"], ids=str)
def test_a_command_that_is_not_run_here_is_understood(block: Block, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "hosts", "results.jsonl", "train.jsonl", "replay.jsonl", "codec.json", "suite.toml"):
        (tmp_path / name).touch()
    for name in ("benchmarks", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for words in block.commands:
        if "gradwire" in words:
            ours = words[words.index("gradwire") + 1 :]
            understood(ours)
            assert [name for name in TESTED if " ".join(ours).startswith(name)], f"{ours} is tested nowhere"
            needed = next(extra for name, (_, extra) in CALLS.items() if " ".join(ours).startswith(name))
            assert extras.brought(needed) <= extras.brought(*block.extras or ()), f"{ours} needs {needed}"


def understood(words: list[str]) -> None:
    """Raise what the command would say of its name, options and values; nothing of it runs."""
    command, context = app, click.Context(app, info_name="gradwire")
    while isinstance(command, click.Group):
        _, command, words = command.resolve_command(context, words)
        assert command is not None
    command.make_context(command.name, list(words), parent=context)


def test_a_command_with_a_slip_is_not_understood() -> None:
    for words in (["replay", "lstm", "--worker", "2"], ["bench", "code"], ["demo", "--epochs", "many"]):
        with pytest.raises(click.UsageError):
            understood(words)


def test_blocks_are_found_with_their_titles_and_what_is_installed_above_them() -> None:
    text = (
        'a\n\n```sh title="install"\npip install \'.[cli,kvstore]\'\n```\n```sh title="needs root"\nls\n```\n\n'
        "```python\nx = 1\n```\n"
    )
    install, skipped, runs = parse("page", text)
    assert (install.fate, install.extras) == ("install", None)
    assert (skipped.line, skipped.code, skipped.fate, runs.fate) == (6, "ls\n", "skipped", "python")
    assert skipped.extras == runs.extras == ("cli", "kvstore")


def test_a_change_that_finds_no_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a = 1\nb = 2\n")
    apply(Block("page", 1, "diff", "train.py", " a = 1\n-b = 2\n+b = 3\n"), tmp_path)
    assert (tmp_path / "train.py").read_text() == "a = 1\nb = 3\n"
    with pytest.raises(AssertionError, match="0 times"):
        apply(Block("page", 1, "diff", "train.py", "-b = 2\n"), tmp_path)


def test_what_is_not_installed_is_not_there(tmp_path: Path) -> None:
    code = "import torch, click\ntry:\n    import zmq\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    run_python([Block("page", 1, "python", "", code, ("cli",))], tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "import zmq"],
        env={**os.environ, **extras.variables("cli")},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert "No module named 'zmq'" in done.stderr


@pytest.mark.parametrize("fence", ["```python norun", "```sh {.x}", '``` title="x"y'])
def test_a_fence_that_means_nothing_is_refused(fence: str) -> None:
    with pytest.raises(AssertionError, match="page:1"):
        list(parse("page", f"{fence}\nx\n```\n"))


@pytest.mark.parametrize("fence", ["```js", '```sh title="later"', '```python title="needs"'])
def test_a_block_without_a_language_or_a_reason_is_refused(fence: str) -> None:
    (block,) = parse("page", f"{fence}\nx\n```\n")
    assert block.fate not in FATES


def test_an_install_line_of_something_else_is_refused() -> None:
    with pytest.raises(AssertionError, match="something else"):
        list(parse("page", '```sh title="install"\npip install torch\n```\n'))


def test_a_fence_without_an_end_is_refused() -> None:
    with pytest.raises(AssertionError, match="not closed"):
        list(parse("page", "```python\nx = 1\n"))
