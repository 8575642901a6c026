from tests.forked import forked_workers  # noqa: F401
