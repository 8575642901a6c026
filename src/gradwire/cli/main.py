"""Entry point of the ``gradwire`` command. It imports without click, so that a missing extra is one clear line."""

import sys

__all__ = ["main"]

_NEEDED = ("click", "rich")


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: always; 2 where the extra ``cli`` is not installed, or the input cannot work.
    """
    try:
        from gradwire.cli._folder import app

        app(prog_name="gradwire")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        sys.stderr.write(f"gradwire: the command line needs {missing}: pip install 'gradwire[cli]'\n")
        raise SystemExit(2) from None
