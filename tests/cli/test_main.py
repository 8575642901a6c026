import pytest

from gradwire import cli
from gradwire.version import __version__

# Processes that import torch: a busy machine takes minutes for each.
pytestmark = pytest.mark.timeout(400)

MAIN = "from gradwire.cli.main import main; main()"


WITHOUT = """
import os, sys
import gradwire
sys.argv = ["gradwire", "methods"]
for missing in ("click", "rich"):
    child = os.fork()
    if not child:
        sys.modules[missing] = None
        from gradwire.cli.main import main
        main()
    print(missing, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""The command without each of its packages: importing gradwire, of which it takes long, needs none of them."""


def test_without_its_extra_the_command_says_what_to_install(python):
    done = python("-c", WITHOUT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "click 2\nrich 2\n"
    assert done.stderr == "".join(
        f"gradwire: the command line needs {missing}: pip install 'gradwire[cli]'\n" for missing in ("click", "rich")
    )


def test_another_missing_module_is_not_blamed_on_the_extra(python):
    done = python("-c", f"import sys; sys.modules['gradwire.version'] = None; {MAIN}")
    assert done.returncode == 1
    assert "ModuleNotFoundError: import of gradwire.version" in done.stderr


def test_importing_the_package_loads_no_command_line(python):
    done = python(
        "-c", "import gradwire, sys; print([m for m in sys.modules if m.startswith(('gradwire.cli', 'click', 'rich'))])"
    )
    assert done.stdout == "[]\n"


def test_the_version(gradwire):
    done = gradwire("--version")
    assert done.exit_code == 0
    assert __version__ in done.stdout


def test_help_lists_the_files_of_the_folder(gradwire):
    done = gradwire("--help")
    assert done.exit_code == 0
    listed = {line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()}
    assert {"bench", "doctor", "methods"} <= listed


def test_a_new_file_is_a_new_command(gradwire, tmp_path, monkeypatch):
    (tmp_path / "greet.py").write_text(
        "import click\nfrom gradwire.errors import WireError\n\n"
        "@click.command('greet')\n@click.argument('name')\ndef command(name):\n"
        "    if name == 'nobody':\n        raise WireError('there is nobody\\nthere')\n"
        "    click.echo('hello ' + name)\n"
    )
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    assert gradwire("greet", "world").stdout == "hello world\n"
    refused = gradwire("greet", "nobody")
    assert refused.exit_code == 2
    assert refused.stderr == "Error: there is nobody there\n"


def test_an_unknown_command_names_the_nearest(gradwire):
    done = gradwire("method")
    assert done.exit_code == 2
    assert "unknown command 'method': did you mean 'methods'?" in done.stderr
    assert "Traceback" not in done.stderr
