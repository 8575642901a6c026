"""Lines that are shown unasked, in processes of their own: pytest sets up a log, which users do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

SAY = """from gradwire.notices import log, tell
tell('step %d: %s', 19, 'eden', quiet={quiet})
log.warning('mind %d', 3)
"""
LINE, WARNING = "gradwire: step 19: eden\n", "gradwire: mind 3\n"


def shown(before: str, quiet: bool = False, after: str = "") -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import logging, sys\n{before}\n{SAY.format(quiet=quiet)}{after}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("before", ["sys.stderr = open('/dev/full', 'w')", "sys.stderr = None"], ids=["full", "none"])
def test_a_line_that_cannot_be_written_ends_nothing_and_goes_nowhere_else(before: str) -> None:
    said, _ = shown(before, after="sys.stderr = sys.__stderr__\nprint('trains on')")
    assert said == "trains on\n"


@pytest.mark.parametrize(
    ("before", "quiet", "expected"),
    [
        ("", False, LINE + WARNING),
        ("", True, WARNING),
        ("logging.getLogger('gradwire').setLevel(logging.WARNING)", False, WARNING),
        ("logging.getLogger('gradwire').setLevel(logging.ERROR)", False, ""),
        ("logging.disable(logging.INFO)", False, WARNING),
        ("logging.basicConfig(format='%(message)s', level=logging.INFO)", False, LINE + WARNING),
        ("logging.basicConfig(format='%(message)s', level=logging.INFO)", True, LINE + WARNING),
        ("logging.basicConfig(format='%(message)s')", False, WARNING),
        ("logging.getLogger('gradwire').addHandler(logging.NullHandler())", False, ""),
    ],
    ids=["nothing", "quiet", "level", "errors", "disabled", "info", "quiet and info", "warnings", "null"],
)
def test_a_line_goes_to_stderr_unless_somebody_has_set_up_the_log(before: str, quiet: bool, expected: str) -> None:
    assert shown(before, quiet) == ("", expected)
