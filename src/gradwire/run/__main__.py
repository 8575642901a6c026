"""``python -m gradwire.run [--watch | --apply] script.py ...``, or ``-m module``: for ``torchrun -m gradwire.run``."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import ModuleType

from gradwire.run.session import APPLY, VARIABLE, WATCH, say
from gradwire.run.start import start

__all__ = ["main"]

USAGE = "python -m gradwire.run [--watch | --apply] SCRIPT.py [ARGUMENT]..., or -m MODULE in place of the script"


def main() -> None:
    """Run a script in this process, as Python itself would.

    Raises:
        SystemExit: the script has ended; with status 2 where there is no such script.
    """
    given, mode = sys.argv[1:], os.environ.get(VARIABLE) or WATCH
    while given and given[0] in ("--watch", "--apply"):
        mode = given.pop(0)[2:]
    named = given[:1] == ["-m"] and len(given) > 1
    if not given or (given[0].startswith("-") and not named):
        say(f"{f'unknown option {given[0]!r}' if given else 'a script is missing'}: {USAGE}")
        raise SystemExit(2)
    if not named and not Path(given[0]).is_file():
        say(f"there is no script {given[0]!r}")
        raise SystemExit(2)
    # Processes that the script starts take part, too.
    os.environ[VARIABLE] = mode if mode in (WATCH, APPLY) else os.environ[VARIABLE]
    if start(mode, speaks=True) is None:
        raise SystemExit(2)
    if named:
        sys.argv[:] = given[1:]
        runpy.run_module(given[1], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = given
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(given[0]).resolve().parent)
    script, file = ModuleType("__main__"), os.path.abspath(given[0])
    vars(script).update(__file__=file, __builtins__=__builtins__, __spec__=None)
    # For good: threads and functions that run at the end find what they had.
    sys.modules["__main__"] = script
    # The script's annotations are not those of this file, which imports them from the future.
    exec(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True), vars(script))


if __name__ == "__main__":
    main()
