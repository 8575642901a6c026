"""A method in a file of the user's own: how it is named and registered, and what is said where it cannot be."""

import os
import pickle
import subprocess
import sys

import pytest
import torch

from gradwire import method_files, registry
from gradwire.errors import ConfigError
from gradwire.method_files import VARIABLE
from gradwire.registry import registered

METHODS = '''
from dataclasses import dataclass

import gradwire
from gradwire.compressors.casts.fp16 import FP16
from half import half


class {simple}(gradwire.SimpleCompressor):
    """Send a float16 of each element."""

    def __init__(self, gain=1.0):
        super().__init__()
        self.calls = 0
        self.gain = gain

    def compress(self, tensor, name):
        self.calls += 1
        return [half(self.gain * tensor)], None

    def decompress(self, tensors, ctx):
        return tensors[0].float()


@dataclass(frozen=True)
class {full}(FP16):
    """Send a float16 of each element."""

    gain: float = 1.0
    name = "{full}"


class Unfinished(gradwire.SimpleCompressor):
    def compress(self, tensor, name):
        return [tensor], None


class Unnamed(FP16):
    name = None


@dataclass(frozen=True)
class Topk(FP16):
    name = "topk"


WORD = 3
'''

CHILD = """
import pickle, sys
objects = pickle.load(open(sys.argv[1], "rb"))
from gradwire import registry
for each in objects:
    assert registry.from_config("compressors", each.to_config()).to_config() == each.to_config()
    print(each.to_config())
"""


@pytest.fixture
def methods(tmp_path, monkeypatch):
    """A file with methods, whose module and classes no other test has."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(method_files, "__path__", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "half.py").write_text("def half(tensor):\n    return tensor.half()\n")
    mark = abs(hash(tmp_path)) % 10**9
    file = tmp_path / f"own{mark}.py"
    names = {"simple": f"Simple{mark}", "full": f"Full{mark}"}
    file.write_text(METHODS.format(**names))
    sys.modules.pop("half", None)
    return file, names["simple"], names["full"]


def test_a_name_is_left_as_it_is(methods):
    assert registered("qsgd:bits=4") == "qsgd:bits=4"
    assert registered("auto:budget=small") == "auto:budget=small"
    assert os.environ[VARIABLE] == ""


@pytest.mark.parametrize("kind", [1, 2])
def test_a_class_in_a_file_is_a_method_with_its_parameters(methods, kind):
    file, name = methods[0], methods[kind]
    assert registered(f"{file}:{name}:gain=2.0") == f"{name}:gain=2.0"
    assert registered(f"{file}:{name}") == name  # once more
    assert name in registry.names("compressors")
    assert registry.tier("compressors", name) == "outside"
    code = registry.build("compressors", f"{name}:gain=2.0")
    assert code.to_config() == {"name": name, "gain": 2.0}
    again = registry.from_config("compressors", code.to_config())
    assert again.to_config() == code.to_config()
    sent = code.compress(torch.tensor([0.5, -1.0]))
    assert again.decompress(sent, (2,)).tolist() == [1.0, -2.0] if kind == 1 else [0.5, -1.0]
    with pytest.raises(ConfigError, match="has no parameter 'gian': did you mean 'gain'"):
        registry.build("compressors", f"{name}:gian=2.0")


def test_a_process_that_is_started_knows_the_method_and_its_objects(methods, tmp_path):
    file, simple, full = methods
    codes = [registry.build("compressors", f"{registered(f'{file}:{name}')}:gain=2.0") for name in (simple, full)]
    (tmp_path / "objects").write_bytes(pickle.dumps(codes))
    command = [sys.executable, "-c", CHILD, str(tmp_path / "objects")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(code.to_config()) for code in codes]


def test_a_relative_file_is_looked_for_in_the_folder(methods):
    file, simple, _ = methods
    assert registered(f"{file.name}:{simple}", file.parent) == simple


def test_no_configuration_loads_a_file(methods):
    file, simple, _ = methods
    for config in ({"name": f"{file}:{simple}"}, {"name": str(file)}, {"name": simple}):
        with pytest.raises(ConfigError, match="unknown compressor"):
            registry.from_config("compressors", config)
    assert f"gradwire.method_files.{file.stem}" not in sys.modules


def test_what_is_wrong_is_said(methods):
    file, simple, full = methods
    wrong = {
        "nowhere.py:Half": "no such file: .*nowhere.py",
        str(file): f"is written FILE.py:Class, got .*; its methods: {full}, {simple}, Topk, Unfinished, Unnamed",
        f"{file}:Simple": f"has no class 'Simple': did you mean '{simple}'",
        f"{file}:WORD": "must be a subclass of gradwire.SimpleCompressor or gradwire.Compressor, got 3",
        f"{file}:Unfinished": "Unfinished must define decompress",
        f"{file}:Unnamed": "must be a frozen dataclass with a name, as name = 'unnamed'",
        f"{file}:Topk": "is called 'topk', as another method is: give it another name",
    }
    for text, said in wrong.items():
        with pytest.raises(ConfigError, match=said):
            registered(text)
    assert os.environ[VARIABLE] == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os\n\nCELLS = 1 / 0\n", "cannot be imported: line 3: ZeroDivisionError: division by zero"),
        ("import os\n\ndef compress(:\n", "cannot be imported: line 3: SyntaxError: "),
        ("import nonesuch_package\n", "cannot be imported: line 1: ModuleNotFoundError: No module named 'nonesuch"),
        ("raise SystemExit(3)\n", "cannot be imported: line 1: SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_the_line(methods, text, said):
    file, simple, _ = methods
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        registered(f"{file}:{simple}")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_two_files_of_one_name_are_refused(methods, tmp_path):
    file, simple, _ = methods
    registered(f"{file}:{simple}")
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / file.name
    other.write_text(file.read_text().replace("float16", "half"))
    with pytest.raises(ConfigError, match="must have different names, to be used together"):
        registered(f"{other}:{simple}")
