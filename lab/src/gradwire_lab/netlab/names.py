"""Names of the parts of a lab, and addresses of its workers."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire_lab.netlab._watchdog import PREFIX

__all__ = ["INTERFACE", "MOST_WORKERS", "PORT", "LabNames"]

INTERFACE = "eth0"
"""A worker's only interface but loopback; the same everywhere, so that one setting fits all workers."""

PORT = 29500
"""The port on which worker 0 may listen: a namespace has all ports to itself."""

MOST_WORKERS = 250
"""Addresses of a /24."""


@dataclass(frozen=True)
class LabNames:
    """The names of one lab, which suffice for another process to join it.

    Args:
        id: id of the lab.
        workers: number of workers.

    Example:
        >>> names = LabNames("3f09ab", 2)
        >>> names.all, names.address(1)
        (('gw-3f09ab-hub', 'gw-3f09ab-0', 'gw-3f09ab-1'), '10.77.0.2')
    """

    id: str
    workers: int

    @property
    def hub(self) -> str:
        """The namespace of the bridge."""
        return f"{PREFIX}{self.id}-hub"

    @property
    def all(self) -> tuple[str, ...]:
        """All namespaces, that of the bridge first."""
        return self.hub, *(self.worker(rank) for rank in range(self.workers))

    def worker(self, rank: int) -> str:
        """The namespace of a worker."""
        return f"{PREFIX}{self.id}-{rank}"

    def port(self, rank: int) -> str:
        """The bridge's end of a worker's cable."""
        return f"port{rank}"

    def address(self, rank: int) -> str:
        """The address of a worker; workers of different labs may share one, because they never meet."""
        return f"10.77.0.{rank + 1}"

    def environment(self, rank: int) -> dict[str, str]:
        """The environment that lets processes of ``torch.distributed`` form a group over the lab's links."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.workers),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "NCCL_SOCKET_IFNAME": INTERFACE,
        }
