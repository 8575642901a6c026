"""Mistakes that ``gradwire meeting`` refuses; ``tests/meeting`` meet at a real one."""

import socket

import pytest


@pytest.mark.parametrize("bind", ["7100", "host:", "127.0.0.1:70000", ":7100"])
def test_an_address_that_is_none(gradwire, bind):
    done = gradwire("meeting", "--bind", bind)
    assert done.exit_code == 2
    assert f"--bind must be HOST:PORT, got '{bind}'" in done.stderr


def test_an_address_that_is_taken(gradwire):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = gradwire("meeting", "--bind", f"127.0.0.1:{port}")
    assert done.exit_code == 2
    assert f"--bind must be an address of this machine with a free port, got 127.0.0.1:{port}: " in done.stderr
