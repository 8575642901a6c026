"""Import of Pillow, the library that reads images."""

from __future__ import annotations

from typing import Any

from gradwire._extras import install
from gradwire.errors import ConfigError

__all__ = ["pillow"]


def pillow() -> Any:
    """Import ``PIL.Image``, or say how to install it.

    Raises:
        ConfigError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ConfigError(f"image files need Pillow, which is not installed: {install('bench')}") from None
    return Image
