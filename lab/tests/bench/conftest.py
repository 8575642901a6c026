import importlib
import sys

import pytest

from gradwire import compressors, registry
from tests.forked import forked_workers  # noqa: F401

_FILE = """
from dataclasses import dataclass

from gradwire.compressors.ternary.twobit import TwoBit


@dataclass(frozen=True)
class Broken(TwoBit):
    name = "broken"

{body}
"""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Registers ``broken`` the way every method is: by a file in the folder. Its body overrides parts of ``twobit``."""

    def register(body):
        (tmp_path / "broken.py").write_text(_FILE.format(body=body))
        importlib.invalidate_caches()
        monkeypatch.setattr(compressors, "__path__", [*compressors.__path__, str(tmp_path)])
        _forget()
        return registry.build("compressors", "broken")

    yield register
    _forget()


def _forget():
    registry.places.cache_clear()
    registry.usable.cache_clear()
    registry.find.cache_clear()
    sys.modules.pop("gradwire.compressors.broken", None)
