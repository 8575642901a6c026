"""``gradwire server``: one server of the KVStore."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import torch

from gradwire.cli.command_group import METHOD, Integer, Number
from gradwire.errors import ConfigError

__all__ = ["command"]


@click.command("server")
@click.option("--workers", type=Integer(1), required=True, help="How many workers there are.")
@click.option("--bind", default="tcp://127.0.0.1:0", show_default=True, help="Where to listen; port 0 is a free one.")
@click.option(
    "--keys", type=click.Path(path_type=Path, file_okay=False), help="The servers' folder of gradwire keygen."
)
@click.option("--insecure", is_flag=True, help="Listen where others can reach it, without keys.")
@click.option("--on-dead-worker", type=click.Choice(["error", "continue"]), default="error", show_default=True)
@click.option(
    "--dead-after",
    type=Number(0, min_open=True),
    default=8.0,
    show_default=True,
    metavar="SECONDS",
    help="Silence after which a worker counts as dead.",
)
@click.option("--staleness", type=Integer(0), help="In async: how many steps ahead of the slowest. Default: any.")
@click.option(
    "--snapshot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Go on from this file if it is there, and write it every so many steps.",
)
@click.option("--snapshot-every", type=Integer(1, 128), default=100, show_default=True, metavar="STEPS")
@click.option(
    "--durability",
    type=click.Choice(["process", "disk"]),
    default="process",
    show_default=True,
    help="What the snapshot file survives: the end of the server's process, or of the machine too.",
)
@click.option("--metrics-port", type=Integer(0, 65535), help="Serve Prometheus metrics on loopback; 0: free one.")
@click.option("--until-finished", is_flag=True, help="End when all workers have ended in peace, or are gone for long.")
@click.option(
    "--compressor",
    multiple=True,
    type=METHOD,
    expose_value=False,
    metavar="FILE.py:Class",
    help="A method of yours that workers may choose by its name; may be repeated.",
)
@click.option("--scheduler", metavar="ENDPOINT", help="Tell this scheduler where workers find this server.")
@click.option("--threads", type=Integer(1), default=1, show_default=True, help="That add gradients up.")
def command(
    workers: int,
    bind: str,
    keys: Path | None,
    insecure: bool,
    on_dead_worker: str,
    dead_after: float,
    staleness: int | None,
    snapshot: Path | None,
    snapshot_every: int,
    durability: str,
    metrics_port: int | None,
    until_finished: bool,
    scheduler: str | None,
    threads: int,
) -> None:
    """Keep values for the workers of a dist store until ended by SIGTERM or Ctrl-C.

    Prints the address on its first line.
    """
    # Here, so that help needs no extra.
    from gradwire.kvstore.launch.scheduler import Member
    from gradwire.kvstore.protocol.environment import start_timeout
    from gradwire.kvstore.server.core import ServerCore
    from gradwire.kvstore.server.prometheus_metrics import serve
    from gradwire.kvstore.server.rules import Rules
    from gradwire.kvstore.server.server import Finished, Server, keep_memory
    from gradwire.kvstore.server.snapshot import Snapshots, open_core
    from gradwire.kvstore.system import SYSTEM

    torch.set_num_threads(threads)
    keep_memory()
    rules = Rules(workers, on_dead_worker, dead_after, staleness)
    if snapshot is not None and not SYSTEM.disk.reserve(snapshot):
        raise ConfigError(f"--snapshot {snapshot} is another server's, which runs: give each server a file of its own")
    flushed = durability == "disk"
    core = ServerCore(rules) if snapshot is None else open_core(snapshot, rules, flushed=flushed)
    # Before the server listens, so that a port that is taken is an error before anybody relies on the server.
    metrics = None if metrics_port is None else f"http://127.0.0.1:{serve(core, metrics_port)}/metrics"
    server = Server(core, bind, keys=keys, insecure=insecure)
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: ended.append(number))
    click.echo(f"listening on {server.endpoint}")
    if metrics is not None:
        click.echo(f"metrics on {metrics}")
    after: list[Callable[[], None]] = []
    if snapshot is not None:
        after.append(partial(Snapshots(snapshot_every).after, core))
    over = Finished(core, clock=lambda: server.clock.now) if until_finished else None
    with ExitStack() as stack:
        stack.callback(server.close)
        if scheduler is not None:
            member = Member(scheduler, endpoint=server.endpoint, keys=keys, timeout=start_timeout())
            stack.callback(member.leave)
            after.append(member.attend)
        server.run(lambda: bool(ended) or (over is not None and over()), lambda: call_all(after))
    if signal.SIGINT in ended:
        raise KeyboardInterrupt


def call_all(functions: Sequence[Callable[[], None]]) -> None:
    """Call all callbacks between two batches of messages."""
    for function in functions:
        function()
