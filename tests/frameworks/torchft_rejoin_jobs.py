"""Work of the ranks of a replica that is killed and comes back; each replica is a job of its own."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchft import DistributedDataParallel, ProcessGroupGloo
from torchft.coordination import LighthouseClient
from torchft.manager import REPLICA_ID_KEY

import gradwire
from tests.frameworks.torchft_jobs import PATIENCE, loss_of, manager_at, model_of, sharded
from tests.integrations.jobs import note, wait_for

DIES = 2
"""The step in whose middle the last replica is killed."""

BACK = 4
"""The step that the others begin once it is there again; the lighthouse may hear of it a step later."""

TOGETHER = 3
"""Steps that all of them make then."""


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Saved:
    """The state that a replica gets from another one when it comes back: weights and momenta of the same rank.

    Args:
        model: the model, in shards or whole.
        optimizer: its optimizer.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, list[Tensor]]:
        """Return copies, in the order of the parameters."""
        weights = [local(param.detach()).clone() for param in self.model.parameters()]
        kept = [self.optimizer.state[param].get("momentum_buffer") for param in self.model.parameters()]
        return {"weights": weights, "momenta": [local(each).clone() for each in kept if each is not None]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        """Overwrite weights and momenta."""
        params = list(self.model.parameters())
        for param, weights, momentum in zip(params, state["weights"], state["momenta"], strict=True):
            local(param.data).copy_(weights)
            buffer = torch.zeros_like(param)
            local(buffer).copy_(momentum)
            self.optimizer.state[param]["momentum_buffer"] = buffer


def live(
    rank: int, lighthouse: str, folder: str, replica: int, replicas: int, again: bool, method: str, asynchronous: bool
) -> dict[str, Any]:
    """Train to the end; the last replica is killed in its first life, and begins with other weights in its second.

    Args:
        lighthouse: address of the lighthouse at which the replicas meet.
        folder: folder in which ranks leave notes: in ``there`` at the start, in ``ready`` when they have come to
            ``BACK``, in ``back`` when they are there again.
        replica: number of this replica; the last one dies.
        replicas: number of replicas.
        again: true: it lives for the second time.
        method: method of what the manager sends.
        asynchronous: true: the quorum is found during the forward pass; then a replica that comes back has nothing
            to say in its first step.
    """
    last = replica == replicas - 1
    size, me = dist.get_world_size(), replica * dist.get_world_size() + rank
    if again:
        wait_for(f"{folder}/ready", range(replica * size))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    known: list[Any] = [None] * size
    dist.all_gather_object(known, store and store.port)
    group = gradwire.wrap_group(ProcessGroupGloo(PATIENCE), method, min_numel=1024)
    options = {"use_async_quorum": asynchronous}
    manager = manager_at(lighthouse, known[0], group, replica, rank, size, **options)
    model: nn.Module = DistributedDataParallel(manager, model_of()) if size == 1 else sharded(dist.group.WORLD, manager)
    for param in model.parameters() if again else ():
        nn.init.constant_(param, 0.5)
    optimizer = sgd(model)
    saved = Saved(model, optimizer)
    manager.register_state_dict_fn("all", saved.load_state_dict, saved.state_dict)
    if rank == 0:
        # The lighthouse waits for replicas of which it has heard, and for no others.
        LighthouseClient(lighthouse, PATIENCE).heartbeat(manager._store.get(REPLICA_ID_KEY).decode())
    dist.barrier()
    note(f"{folder}/back" if again else f"{folder}/there", me)
    if not again:
        wait_for(f"{folder}/there", range(replicas * size))
    told: dict[str, Any] = {"participants": [], "committed": [], "weights": {}}
    together = 0
    while together < TOGETHER:
        if manager.current_step() == BACK and not last:
            note(f"{folder}/ready", me)
            wait_for(f"{folder}/back", range(replicas * size - size, replicas * size))
        manager.start_quorum()
        if last and not again and manager.current_step() == DIES:
            manager.num_participants()
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        # A replica that heals later learns only then which step it is, and what it computes does not count.
        loss_of(model, manager.current_step(), me).backward()
        told["participants"].append(manager.num_participants())
        told["committed"].append(manager.should_commit())
        if told["committed"][-1]:
            optimizer.step()
            together += told["participants"][-1] == replicas and manager.current_step() > DIES
        told["weights"][manager.current_step()] = [local(param.detach()).clone() for param in model.parameters()]
    told["metrics"] = group.metrics()
    dist.barrier()
    manager.shutdown()
    group.shutdown()
    return told


def exact(there: list[list[int]]) -> list[Tensor]:
    """The weights at the end without compression.

    Args:
        there: replicas whose data counts in each step.
    """
    model = model_of()
    optimizer = sgd(model)
    for step, sources in enumerate(there):
        optimizer.zero_grad()
        for source in sources:
            (loss_of(model, step, source) / len(sources)).backward()
        optimizer.step()
    return [param.detach() for param in model.parameters()]
