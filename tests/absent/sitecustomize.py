"""Packages that are not installed, as far as this process and those that it starts can see.

Python imports a module of this name by itself where its folder is on PYTHONPATH. What is absent is in two variables,
separated by commas: modules in GRADWIRE_TEST_MODULES, distributions in GRADWIRE_TEST_DISTRIBUTIONS.
"""

import os
import sys
from importlib import metadata
from importlib.abc import MetaPathFinder


class Present(MetaPathFinder):
    """Asks the finders that were there, for all but what is absent: whoever looks for that finds nothing."""

    def __init__(self, finders):
        self.finders = finders
        self.modules = self.distributions = frozenset()

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.modules:
            return None
        found = (finder.find_spec(name, path, target) for finder in self.finders)
        return next((spec for spec in found if spec is not None), None)

    def find_distributions(self, context=None):
        context = context or metadata.DistributionFinder.Context()
        for finder in self.finders:
            for each in getattr(finder, "find_distributions", lambda _: ())(context):
                if each.metadata["Name"].lower().replace("_", "-") not in self.distributions:
                    yield each


def hide(modules, distributions):
    """These and no others, from now on."""
    if not isinstance(sys.meta_path[0], Present):
        sys.meta_path[:] = [Present(list(sys.meta_path))]
    sys.meta_path[0].modules, sys.meta_path[0].distributions = frozenset(modules), frozenset(distributions)


def words(variable):
    return [each for each in os.environ.get(variable, "").split(",") if each]


if "GRADWIRE_TEST_MODULES" in os.environ:
    hide(words("GRADWIRE_TEST_MODULES"), words("GRADWIRE_TEST_DISTRIBUTIONS"))
