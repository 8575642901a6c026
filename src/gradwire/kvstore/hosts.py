"""The machines of a run, as a file lists them.

    [USER@]HOST[:PORT] [slots=N] [address=IP]      # the port is ssh's

One in each line; what follows a # is not read.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire.errors import ConfigError, require

__all__ = ["Host", "placed", "read_hosts"]

LINE = re.compile(r"(?:(?P<user>[\w.-]+)@)?(?P<name>\w[\w.-]*|\[[0-9a-fA-F:]+\])(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True)
class Host:
    """A machine.

    Args:
        name: as ssh takes it.
        user: for ssh; empty: ssh's own choice.
        port: of its sshd; None: ssh's own choice.
        slots: workers that it takes.
        address: IP at which the other machines reach its servers; empty: what its name resolves to.
    """

    name: str
    user: str = ""
    port: int | None = None
    slots: int = 1
    address: str = ""

    def listen(self) -> str:
        """The IP at which its servers listen.

        Raises:
            ConfigError: its name is known to ssh alone.
        """
        if self.address:
            return self.address
        try:
            return str(socket.getaddrinfo(self.name, None, socket.AF_INET)[0][4][0])
        except OSError:
            raise ConfigError(f"host {self.name!r} resolves to no IP: write address=IP after it in the file") from None


def read_hosts(path: str | Path) -> list[Host]:
    """The machines of a file; what follows a # is not read.

    Raises:
        ConfigError: no such file, no machine in it, or a line of another form.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--host-file {path} cannot be read: {error}") from None
    texts = [(number, line.partition("#")[0].split()) for number, line in enumerate(lines, 1)]
    hosts = [parsed(words, f"{path}, line {number}") for number, words in texts if words]
    require(bool(hosts), "--host-file", "a file with at least one host", str(path))
    return hosts


def parsed(words: Sequence[str], where: str) -> Host:
    """A line.

    >>> parsed(["ada@node1:2222", "slots=4"], "hosts, line 1")
    Host(name='node1', user='ada', port=2222, slots=4, address='')

    Raises:
        ConfigError: another form.
    """
    found = LINE.fullmatch(words[0])
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    known = options.keys() <= {"slots", "address"} and len(options) == len(words) - 1
    if found is None or not known:
        raise ConfigError(f"{where} must be [USER@]HOST[:PORT] [slots=N] [address=IP], got {' '.join(words)!r}")
    slots, address, port = options.get("slots", "1"), options.get("address", ""), int(found["port"] or 22)
    require(slots.isdecimal() and int(slots) > 0, f"slots in {where}", "an integer >= 1", slots)
    require(0 < port < 65536, f"the port in {where}", "in [1, 65535]", port)
    try:
        address = str(ipaddress.ip_address(address)) if address else ""
    except ValueError:
        raise ConfigError(f"address in {where} must be an IP, got {address!r}") from None
    return Host(found["name"].strip("[]"), found["user"] or "", port if found["port"] else None, int(slots), address)


def placed(hosts: Sequence[Host], workers: int) -> list[Host]:
    """The machine of each worker: the slots of the first one are filled, then those of the next.

    Raises:
        ConfigError: fewer slots than workers.
    """
    slots = [host for host in hosts for _ in range(host.slots)]
    if len(slots) < workers:
        raise ConfigError(f"--workers must be at most {len(slots)}, the slots of the host file, got {workers}")
    return slots[:workers]
