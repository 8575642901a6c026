"""The library that reads images, where it is installed."""

from __future__ import annotations

from typing import Any

from gradwire._extras import install
from gradwire.errors import ConfigError

__all__ = ["pillow"]


def pillow() -> Any:
    """``PIL.Image``.

    Raises:
        ConfigError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ConfigError(f"image files need Pillow, which is not installed: {install('bench')}") from None
    return Image
