import ast
import contextlib
import dataclasses
import inspect
import json
import sys
from importlib.metadata import EntryPoint

import pytest

from gradwire import registry
from gradwire.catalogue import describe
from gradwire.cli._method_files import DescribedMethod, described_methods, foreign


def expected():
    return [describe(registry.build("compressors", name)) for name in registry.names("compressors")]


def test_json_holds_what_every_method_declares(gradwire):
    done = gradwire("methods", "--json", "-")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == expected()


def test_every_method_is_described_as_its_class_is(gradwire):
    lines = gradwire("methods").stdout.splitlines()
    for each in described_methods():
        cls = registry.find("compressors", each.name)
        (line,) = (line for line in lines if line.startswith(f"{each.name} "))
        defaults = {field.name: field.default for field in dataclasses.fields(cls) if field.init}
        assert each.summary == inspect.getdoc(cls).splitlines()[0] != ""
        assert each.summary in line
        assert cls.reference in line
        assert each.parameters.keys() == defaults.keys()
        for name, text in each.parameters.items():
            assert (f"{name}={text}" if text else name) in line
            with contextlib.suppress(ValueError, SyntaxError):  # of a constant's name
                assert ast.literal_eval(text) == defaults[name]
    assert [each.name for each in described_methods()] == list(registry.names("compressors"))


def test_a_method_that_is_named_is_described_whole(gradwire):
    said = gradwire("methods", "qsgd").stdout
    assert said.startswith("qsgd: levels, recommended or well tried\n\nRound each element at random")
    assert "bits: bits for each element, 2 to 8" in said
    assert 'gradwire.compress_ddp(model, "qsgd", bits=4, block=512' in said
    assert "docs/methods/levels.md#qsgd" in said
    assert json.loads(gradwire("methods", "qsgd", "--json", "-").stdout)[0]["name"] == "qsgd"
    refused = gradwire("methods", "qsdg")
    assert refused.exit_code == 2
    assert "unknown method 'qsdg': did you mean 'qsgd'?" in refused.stderr


ELSEWHERE = """
class Other:
    name = "other"

class Mine:
    \"\"\"Send nothing.\"\"\"

    share: float = 0.5
    name = "mine"
"""


@pytest.mark.parametrize("place", ["alone_elsewhere.py", "all_elsewhere/__init__.py", "some_elsewhere/inside/mine.py"])
def test_a_method_of_another_package_is_described_wherever_it_is(place, tmp_path, monkeypatch):
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(ELSEWHERE)
    module = place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    monkeypatch.syspath_prepend(tmp_path)
    told = foreign(EntryPoint("mine", f"{module}:Mine", "gradwire.compressors"), "elsewhere")
    said = "Send nothing."
    assert told == DescribedMethod("mine", "elsewhere", summary=said, parameters={"share": "0.5"}, text=said)
    assert module not in sys.modules


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["methods"], ["help"], ["version"], ["launch", "--help"]])
def test_what_only_tells_something_answers_without_torch(words, python):
    done = python("-X", "importtime", "-m", "gradwire", *words)
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"gradwire.cli.main", "click"} <= loaded
    assert not loaded & {"torch", "numpy"}


def test_the_tables_name_every_method(gradwire):
    lines = gradwire("methods", "--declared").stdout.splitlines()
    for name in registry.names("compressors"):
        assert sum(line.startswith(f"{name} ") for line in lines) == 3, name
    for head in ("class", "nature", "feedback", "memory", "aggregation", "bits", "state bytes", "source"):
        assert sum(head in line for line in lines) >= 1, head


def test_json_into_a_file_leaves_the_tables_on_the_screen(gradwire, tmp_path):
    file = tmp_path / "methods.json"
    done = gradwire("methods", "--json", str(file))
    assert json.loads(file.read_text()) == expected()
    assert "twobit" in done.stdout


def test_a_folder_that_is_not_there_is_refused_before_the_work(gradwire, tmp_path):
    done = gradwire("methods", "--json", str(tmp_path / "nowhere" / "methods.json"))
    assert done.exit_code == 2
    assert "cannot be written: No such file or directory" in done.stderr


def test_a_real_process(python):
    done = python(
        "-c",
        "import sys; sys.argv = ['gradwire', 'methods', '--json', '-']; from gradwire.cli.main import main; main()",
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert [row["name"] for row in json.loads(done.stdout)] == list(registry.names("compressors"))


def test_a_folder_in_place_of_a_file_is_refused(gradwire, tmp_path):
    done = gradwire("methods", "--json", str(tmp_path))
    assert done.exit_code == 2
    assert "cannot be written: Is a directory" in done.stderr


def test_trying_the_destination_leaves_nothing_behind(gradwire, tmp_path):
    done = gradwire("bench", "codec", "--json", str(tmp_path / "rows.json"), "--method", "nope")
    assert done.exit_code == 2
    assert not (tmp_path / "rows.json").exists()
