"""Commands and methods that another package registers wrongly: a line each, and all other commands work as before."""

import os

import pytest

POINTS = """
[gradwire.commands]
gone = wrong_gone
module = wrong_module
odd = .
raises = wrong_raises
right = wrong_right

[gradwire.compressors]
gone = wrong_gone.inside:Gone
odd = .:Odd
raises = wrong_raises:Raises
"""

MODULES = {
    "wrong_module.py": "",
    "wrong_raises.py": "raise RuntimeError('in\\ntwo lines')\n",
    "wrong_right/__init__.py": "",
    "wrong_right/greet.py": '''
import click


@click.command("greet")
def command():
    """Say hello."""
    click.echo("hello")
''',
    "wrong_right/lost.py": "import wrong_gone\n\n\ndef command():\n    ...\n",
    "wrong_right/nothing.py": "",
    "wrong_right/unreadable.py": "def command(:\n",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package, as pip leaves it there."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "wrong-1.dist-info").mkdir()
    (folder / "wrong-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong\nVersion: 1\n")
    (folder / "wrong-1.dist-info" / "entry_points.txt").write_text(POINTS)
    for name, text in MODULES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


@pytest.fixture
def run(python, installed):
    return lambda *words: python("-m", "gradwire", *words, PYTHONPATH=os.pathsep.join([installed, os.getcwd()]))


LEFT_OUT = [
    "ModuleNotFoundError: No module named 'wrong_gone'",
    "ImportError: wrong_module is no package, whose modules are commands",
    "TypeError: the 'package' argument is required to perform a relative import for '.'",
    "RuntimeError: in two lines",
]


@pytest.mark.parametrize("words", [("--help",), ("methods", "qsgd"), ("greet",)])
def test_each_wrong_entry_is_one_line_and_the_command_works(run, words):
    done = run(*words)
    assert done.returncode == 0, done.stderr
    begin = "gradwire: warning: the commands of the package wrong are left out: "
    assert sorted(done.stderr.splitlines()) == sorted(begin + error for error in LEFT_OUT)
    said = {"--help": "greet       Say hello.", "methods": "qsgd: levels", "greet": "hello\n"}
    assert said[words[0]] in done.stdout


def test_a_module_of_its_package_that_is_wrong_is_one_line(run):
    for name, said in {
        "lost": "ModuleNotFoundError: No module named 'wrong_gone'",
        "nothing": "AttributeError: module 'wrong_right.nothing' has no attribute 'command'",
        "unreadable": "SyntaxError: invalid syntax (unreadable.py, line 1)",
    }.items():
        done = run(name)
        assert done.returncode == 2
        last = done.stderr.splitlines()[len(LEFT_OUT) :]
        assert last == [f"Error: the command {name!r} of wrong_right cannot be loaded: {said}"]
        assert done.stdout == ""


def test_methods_that_cannot_be_loaded_are_named_and_left_out(run):
    done = run("methods", "--declared")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()[len(LEFT_OUT) :]
    assert [line.split(" ")[2] for line in lines] == ["'gone'", "'odd'", "'raises'"]
    assert all(line.endswith("; it is left out") for line in lines)
    assert "\nqsgd " in done.stdout
    assert "\ngone " not in done.stdout
