import gc
import os
import signal

import hypothesis
import pytest
import torch

from gradwire.testing import processes
from tests.missing import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]

# Scripts as users have them; some train when they are imported, some need packages that are not installed.
collect_ignore_glob = ["tests/run/scripts/*", "lab/src/gradwire_lab/experiments/run_scripts/*"]

# A shell that runs the tests in the background has them ignore Ctrl-C, and what they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Whatever function of a test module a rank runs, it would import pytest first, a tenth of a second for each of them.
processes.PRELOAD += ["pytest", "tests.frozen"]

# What is imported and collected lives to the end. Nobody looks through these 600,000 objects, more than half a second
# each time: not while they come, nor when a test, or what it tests, collects garbage or seeks models.
gc.disable()


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()
    gc.enable()


# No example has a time limit of its own: on a busy machine a fifth of a second says nothing.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture
def one_thread():
    """Several processes share the machine, and spinning threads of all of them would slow each other down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
