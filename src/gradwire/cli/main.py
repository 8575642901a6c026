"""Entry point of the ``gradwire`` command. It imports without click, so that a missing extra is one clear line."""

import gc
import sys
from importlib.util import find_spec

from gradwire._extras import install, remedy
from gradwire.cli._interrupt import end_on_interrupt, stopped

__all__ = ["main"]

_NEEDED = ("click", "rich")


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: the program has ended: with status 2 where an extra that the command needs is not installed, or the
            input cannot work; 130 where Ctrl-C came; else 0.
    """
    # A quarter of the time that loading takes is spent in looking for garbage among what is being loaded, and stays.
    gc.disable()
    try:
        end_on_interrupt()
        # Both, so that each command fails with the same message where one of them is missing.
        for package in _NEEDED:
            if find_spec(package) is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        from gradwire.cli._folder import app

        app(prog_name="gradwire")
    except KeyboardInterrupt:
        stopped()
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        # The metadata does not tell where gradwire runs from a folder that was never installed.
        own = f"the command line needs {missing}: {install('cli')}" if missing in _NEEDED else None
        said = own or remedy(error)
        if said is None:
            raise
        sys.stderr.write(f"gradwire: {said}\n")
        raise SystemExit(2) from None
