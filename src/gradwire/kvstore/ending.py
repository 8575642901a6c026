"""When a server that was started for one run has nothing more to do."""

from __future__ import annotations

import time

from gradwire.kvstore.core import ServerCore

__all__ = ["QUIET", "Finished"]

QUIET = 300.0
"""Seconds without any worker after which none is expected any more."""


class Finished:
    """Called now and then, says whether every worker has left in peace, or none has been there for ``quiet`` seconds.

    Args:
        core: of the server.
        quiet: seconds > 0.
    """

    def __init__(self, core: ServerCore, quiet: float = QUIET) -> None:
        self._core, self._quiet, self._seen = core, quiet, time.monotonic()

    def __call__(self) -> bool:
        """Whether that is so now."""
        now = time.monotonic()
        if self._core.present:
            self._seen = now
        return len(self._core.left) == self._core.rules.workers or now - self._seen > self._quiet
