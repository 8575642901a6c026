from importlib.metadata import EntryPoint

import pytest

from gradwire._extras import install
from gradwire.cli import _folder, commands
from gradwire.version import __version__

# Processes that import torch: a busy machine takes minutes for each.
pytestmark = pytest.mark.timeout(400)

WITHOUT = """
import gc, os, sys
import torch
gc.freeze()
sys.argv = ["gradwire", "methods"]

def main_without(module):
    print(module, file=sys.stderr, flush=True)
    child = os.fork()
    if not child:
        sys.modules[module] = None
        from gradwire.cli.main import main
        main()
    print(module, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

main_without("gradwire.version")
import gradwire
main_without("click")
main_without("rich")
"""
"""The command without a module of its own, and without each package of its extra: importing torch, of which it takes
long, needs none of them."""


def test_without_its_extra_the_command_says_what_to_install_and_blames_it_for_nothing_else(python):
    done = python("-c", WITHOUT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "gradwire.version 1\nclick 2\nrich 2\n"
    own, extra = done.stderr.split("\nclick\n")
    assert "ModuleNotFoundError: import of gradwire.version" in own
    assert "install" not in own
    assert extra.split("rich\n", 1) == [
        f"gradwire: the command line needs {missing}: {install('cli')}\n" for missing in ("click", "rich")
    ]


def test_the_version(gradwire):
    done = gradwire("--version")
    assert done.exit_code == 0
    assert __version__ in done.stdout


def test_help_lists_the_files_of_the_folder(gradwire):
    done = gradwire("--help")
    assert done.exit_code == 0
    listed = {line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()}
    assert {"bench", "doctor", "methods"} <= listed
    assert "..." not in done.stdout.partition("Commands:")[2].replace("worker-0, ...:", "")
    shown = " ".join(gradwire("bench", "--help").stdout.split())
    assert "codec Time the operations of the compressors beside a triad that moves as many bytes." in shown


def test_a_new_file_is_a_new_command(gradwire, tmp_path, monkeypatch):
    (tmp_path / "greet.py").write_text(
        "import click\nfrom gradwire.errors import WireError\n\n"
        "@click.command('greet')\n@click.argument('name')\ndef command(name):\n"
        "    if name == 'nobody':\n        raise WireError('there is nobody\\nthere')\n"
        "    click.echo('hello ' + name)\n"
    )
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    assert gradwire("greet", "world").stdout == "hello world\n"
    refused = gradwire("greet", "nobody")
    assert refused.exit_code == 2
    assert refused.stderr == "Error: there is nobody there\n"


def test_commands_that_cannot_be_imported_take_no_others_away(gradwire, monkeypatch):
    broken = EntryPoint("broken", "no_such_package.commands", "gradwire.commands")
    monkeypatch.setattr(_folder, "entry_points", lambda **_: [broken])
    _folder._joined.cache_clear()
    try:
        done = gradwire("version")
        assert (done.exit_code, done.stdout) == (0, f"gradwire, version {__version__}\n")
        why = "ModuleNotFoundError: No module named 'no_such_package'"
        assert done.stderr == f"gradwire: warning: the commands of no_such_package.commands are left out: {why}\n"
        assert "is a command of the laboratory" in gradwire("demo").stderr
    finally:
        _folder._joined.cache_clear()


def test_an_unknown_command_names_the_nearest(gradwire):
    done = gradwire("method")
    assert done.exit_code == 2
    assert "unknown command 'method': did you mean 'methods'?" in done.stderr
    assert "Traceback" not in done.stderr
