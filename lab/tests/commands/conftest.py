from tests.cli.conftest import forked_workers, gradwire, python

__all__ = ["forked_workers", "gradwire", "python"]
