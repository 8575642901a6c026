"""Benchmarks of codecs, kernels and stores, side by side with other implementations.

What trains is in ``gradwire.experiments``; ``gradwire.report`` shows what came of it.
"""

import sys

from gradwire._moved import Moved, as_attributes

_PLACES = {
    **dict.fromkeys(("advise", "netlab", "report"), "gradwire"),
    **dict.fromkeys(
        (
            "clock",
            "cluster",
            "convergence",
            "data",
            "demo",
            "estimates",
            "job",
            "launch",
            "loop",
            "method_text",
            "models",
            "process_figures",
            "progress",
            "recipe",
            "recommended",
            "records",
            "replay",
            "setup",
            "shapes",
            "soak",
            "start",
            "suite",
            "sweep",
            "synchronisation",
            "tasks",
            "torchhooks",
            "train",
            "unpacked",
        ),
        "gradwire.experiments",
    ),
}
"""Modules that were in this folder, and the package in which each is."""

_RENAMED = {
    "method": "gradwire.experiments.training_method",
    "optimizers": "gradwire.experiments.exchanging_optimizer",
    "snapshots": "gradwire.experiments.run_snapshots",
}
"""Modules that were in this folder, and the new name of each."""

_find = {**{name: f"{package}.{name}" for name, package in _PLACES.items()}, **_RENAMED}.get

# The first of all, so that what is inside a folder is not found there a second time.
sys.meta_path.insert(0, Moved(__name__, _find))
__getattr__ = as_attributes(__name__, _find)
