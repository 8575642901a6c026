import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from gradwire.cli._folder import app
from tests.forked import forked_workers  # noqa: F401


@pytest.fixture
def gradwire():
    """The command within this process."""
    return lambda *arguments: CliRunner().invoke(app, arguments, prog_name="gradwire")


@pytest.fixture
def python():
    """A real process: ``python("-m", ...)`` or ``python("-c", ...)``."""

    def run(*arguments, **environment):
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, timeout=380, check=False
        )

    return run
