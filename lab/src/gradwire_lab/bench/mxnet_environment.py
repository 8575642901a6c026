"""The version of MXNet that the comparisons install, and its place."""

from pathlib import Path

__all__ = ["DIRECTORY", "REQUIREMENTS"]

REQUIREMENTS = ("mxnet==1.9.1", "numpy==1.23.5")
DIRECTORY = Path(".peers/mxnet")
