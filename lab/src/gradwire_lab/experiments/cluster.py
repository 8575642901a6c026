"""Place of this process in a job that was started by torchrun or by Slurm's srun."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.errors import ConfigError, require

__all__ = ["Place", "first_host", "placed"]

_PORT = "29500"
_SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}


@dataclass(frozen=True)
class Place:
    """One process of a job.

    Args:
        rank: rank of this process.
        world: processes of the job.
        local: number of this process on its machine.
        address: address of rank 0's machine.
        port: port at which rank 0 listens.
    """

    rank: int
    world: int
    local: int
    address: str
    port: int

    def tell(self) -> None:
        """Set the environment variables that ``torch.distributed`` reads."""
        os.environ.update(
            RANK=str(self.rank),
            WORLD_SIZE=str(self.world),
            LOCAL_RANK=str(self.local),
            MASTER_ADDR=self.address,
            MASTER_PORT=str(self.port),
        )


def placed(environment: Mapping[str, str]) -> Place | None:
    """Read the place from the environment; None if this process was not started as one of several.

    A batch script of Slurm is such a process, too, unless ``srun`` started it: it has a job and no step.

    Raises:
        ConfigError: the environment has only some of the variables.

    Example:
        >>> placed({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "gpu[03-04]"})
        Place(rank=1, world=4, local=0, address='gpu03', port=29500)
        >>> placed({}) is None
        True
    """
    variables = dict(environment)
    if "SLURM_STEP_NODELIST" in variables and "RANK" not in variables and "SLURM_PROCID" in variables:
        variables |= {name: variables[slurm] for name, slurm in _SLURM.items() if slurm in variables}
        variables.setdefault("MASTER_ADDR", first_host(variables["SLURM_STEP_NODELIST"]))
        variables.setdefault("MASTER_PORT", _PORT)
    if "RANK" not in variables:
        return None
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in variables]
    if missing:
        raise ConfigError(f"RANK is set, so {' and '.join(missing)} must be, too: start with torchrun or srun")
    numbers = {name: variables.get(name, "0") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")}
    for name, value in numbers.items():
        require(value.isdigit(), name, "a number >= 0", value)
    rank, world, local, port = map(int, numbers.values())
    return Place(rank, world, local, variables["MASTER_ADDR"], port)


def first_host(nodes: str) -> str:
    """The first host of a list in Slurm's notation.

    >>> first_host("node[007-009,12],login"), first_host("one,two")
    ('node007', 'one')
    """
    found = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    if found is None:
        raise ConfigError(f"SLURM_STEP_NODELIST must be a list of hosts, got {nodes!r}")
    return found[1] + (found[2] or "")
