"""Interpreters that import gradwire anew, forked from one that has imported torch, which takes most of a start."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

FORK = """
import importlib, json, os, sys, tempfile, traceback

def run(code, environment, files):
    for number, file in enumerate(files, 1):
        os.dup2(file.fileno(), number)
    os.environ.update(environment)
    status = 1
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

imported, cases = json.load(sys.stdin)
for name in imported:
    importlib.import_module(name)
assert "gradwire" not in sys.modules
told = []
for code, environment in cases:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            run(code, environment, (out, err))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0), err.seek(0)
        told.append([status, out.read().decode(), err.read().decode()])
print(json.dumps(told))
"""


@dataclass
class Told:
    """The exit code of a process, and its output."""

    returncode: int
    stdout: str
    stderr: str


def interpret(
    cases: Sequence[tuple[str, dict[str, str]]], imported: Sequence[str] = ("torch",), *options: str, **process: object
) -> list[Told]:
    """Run each code with its environment in a process of its own; ``GRADWIRE_*`` is known to those alone that name it.

    Args:
        cases: code, and what is added to the environment.
        imported: modules that all of them have; none may import gradwire.
        options: options of python.
        process: further arguments of ``subprocess.run``.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    process["env"] = {**clean, **process.pop("env", {})}
    done = subprocess.run(
        [sys.executable, *options, "-c", FORK],
        input=json.dumps([imported, cases]),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        **process,
    )
    assert done.returncode == 0, done.stderr
    return [Told(*each) for each in json.loads(done.stdout)]
