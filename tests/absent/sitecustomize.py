"""An environment in which only some distributions are installed, for this process and for those that it starts.

Python imports a module of this name by itself where its folder is on PYTHONPATH. The modules and the distributions
that are not there are in two variables, separated by commas.
"""

import os
import sys
from importlib import metadata
from importlib.machinery import PathFinder

MODULES, DISTRIBUTIONS = "GRADWIRE_TEST_MODULES", "GRADWIRE_TEST_DISTRIBUTIONS"


class Visible(PathFinder):
    """The finder of files, but for some first names."""

    hidden = frozenset()

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if path is None and fullname.partition(".")[0] in cls.hidden:
            return None
        return PathFinder.find_spec(fullname, path, target)


FOUND = metadata.Distribution.from_name.__func__


def hide(modules, distributions):
    """These and no others, from now on; what of them is loaded is let go of."""
    Visible.hidden, gone = frozenset(modules), frozenset(distributions)
    for name in [name for name in sys.modules if name.partition(".")[0] in Visible.hidden]:
        del sys.modules[name]

    def from_name(cls, name):
        if name.lower().replace("_", "-") in gone:
            raise metadata.PackageNotFoundError(name)
        return FOUND(cls, name)

    metadata.Distribution.from_name = classmethod(from_name)
    sys.meta_path[:] = [Visible if finder is PathFinder else finder for finder in sys.meta_path]


if MODULES in os.environ:
    hide(os.environ[MODULES].split(","), os.environ[DISTRIBUTIONS].split(","))
