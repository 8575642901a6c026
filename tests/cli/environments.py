"""Runs commands in several environments: ``python environments.py PLAN``, a file; the results go to stdout.

PLAN is JSON: a list of environments, each with ``modules`` and ``distributions`` that it lacks and the ``calls`` to
make, lists of arguments. An environment is a fork of this process, which has loaded torch, with the compiler that each
DDP model needs, and gradwire, and nothing else: so it costs next to nothing. Each call is made by
``gradwire.cli.main.main``, as the installed command does.
"""

import functools
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "absent"


def called(arguments):
    """The exit code, and what was written to stdout and stderr, by the process itself and by those it starts."""
    from gradwire.cli.main import main

    sys.argv = ["gradwire", *arguments]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        before = os.dup(1), os.dup(2)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            code = 1
            traceback.print_exc()
        finally:
            for stream, kept, number in ((sys.stdout, before[0], 1), (sys.stderr, before[1], 2)):
                stream.flush()
                os.dup2(kept, number)
                os.close(kept)
        out.seek(0), err.seek(0)
        return code, out.read(), err.read()


def inside(environment, pipe):
    """In the fork."""
    import sitecustomize

    if sitecustomize.__file__ != str(FOLDER / "sitecustomize.py"):
        raise RuntimeError(f"another sitecustomize was loaded before: {sitecustomize.__file__}")
    loaded = sorted({name.partition(".")[0] for name in sys.modules} & set(environment["modules"]))
    if loaded:
        raise RuntimeError(f"{loaded} are loaded, and must be absent")
    os.environ["GRADWIRE_TEST_MODULES"] = ",".join(environment["modules"])
    os.environ["GRADWIRE_TEST_DISTRIBUTIONS"] = ",".join(environment["distributions"])
    sitecustomize.hide(environment["modules"], environment["distributions"])
    if "gradwire_lab" not in environment["modules"]:
        from gradwire_lab.experiments import launch

        # Workers fork from a process that has loaded torch, and find what it finds.
        launch.LaunchConfig = functools.partial(launch.LaunchConfig, start_method="fork")
    results = []
    for arguments in environment["calls"]:
        begun = time.monotonic()
        results.append(called(arguments))
        print(f"{time.monotonic() - begun:6.1f} s {' '.join(arguments)}", file=sys.stderr, flush=True)
    with os.fdopen(pipe, "w") as file:
        json.dump(results, file)


def main():
    import torch._dynamo  # noqa: F401

    import gradwire  # noqa: F401

    for environment in json.loads(Path(sys.argv[1]).read_text()):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(reader)
                inside(environment, writer)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writer)
        with os.fdopen(reader) as file:
            text = file.read()
        os.waitpid(child, 0)
        print(text or "null", flush=True)


if __name__ == "__main__":
    main()
