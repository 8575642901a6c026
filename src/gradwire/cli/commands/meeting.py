"""``gradwire meeting``: keep the place at which workers of ``local_sgd`` and ``diloco`` meet."""

from __future__ import annotations

import signal
import socket
from datetime import timedelta

import click
import torch.distributed as dist

from gradwire.errors import ConfigError

__all__ = ["command"]


@click.command("meeting")
@click.option("--bind", default="127.0.0.1:7100", show_default=True, metavar="HOST:PORT", help="Port 0: any free one.")
def command(bind: str) -> None:
    """Keep a meeting place for workers that come and go, until Ctrl-C or SIGTERM.

    It holds their notes and payloads, and never computes. It is not encrypted and asks for no password: bind it to an
    address that only the workers reach.
    """
    host, _, port = bind.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--bind must be HOST:PORT, got {bind!r}")
    listening = listen(host.strip("[]"), int(port))
    port = listening.getsockname()[1]
    # Blocked before the store's threads start, so that none of them takes the signal.
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    kind = dist.TCPStore  # type: ignore[attr-defined]
    store = kind(
        host.strip("[]"),
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        master_listen_fd=listening.detach(),
    )
    click.echo(f"meeting place at {host}:{port}")
    number = signal.sigwait(ends)
    del store
    if number == signal.SIGINT:
        raise KeyboardInterrupt


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; a ``ConfigError`` says that the address cannot be bound."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(family)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(socket.SOMAXCONN)
    except OSError as error:
        raise ConfigError(
            f"--bind must be an address of this machine with a free port, got {host}:{port}: {error}"
        ) from None
    return made
