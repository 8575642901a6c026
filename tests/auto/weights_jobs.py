"""Work of the ranks in the tests of weights that auto decides for."""

from __future__ import annotations

import copy
import json
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather

import gradwire
from gradwire.frontends.fsdp import managed
from tests.auto import jobs
from tests.auto.jobs import LinkClock, SlowChannel, digest, examples, loss_of, network

WEIGHTS = "blockwise8:block=64"


class CarriedGather(DefaultAllGather):
    """FSDP's own gather, which takes its time on a link that reductions use, too."""

    def __init__(self, state: Any, link: LinkClock, rate: float) -> None:
        self.state, self.link, self.rate = state, link, rate

    def __call__(self, output_tensor: Any, input_tensor: Any, *given: Any, **named: Any) -> Any:
        # What was started before is on the link before.
        self.state.background.finish()
        self.link.carry((output_tensor.nbytes - input_tensor.nbytes) / self.rate)
        return super().__call__(output_tensor, input_tensor, *given, **named)


def on_one_link(state: Any, model: nn.Module, rate: float) -> LinkClock:
    """Put the reductions and the gathers of a model on one link of a rate."""
    link = jobs.slow(state.exchange, rate)
    for _, group in managed(model):
        group._all_gather_comm.theirs = CarriedGather(state, link, rate)
    for wire in state._wires.values():
        wire.channel.__class__ = SlowChannel
        wire.channel.rate, wire.channel.link = rate, link

        def start(job: Any) -> None:
            state.background.finish()
            job()

        wire.start = start
    return link


class Sharded:
    """A model under FSDP2, whose layers are modules of their own, on a link of a rate."""

    def __init__(self, rank: int, rate: float = jobs.SLOW / 4, pause: float = 1e-3, **options: Any) -> None:
        torch.set_num_threads(1)
        net = network()
        for layer in net.children():
            layer.register_full_backward_hook(lambda *_: self.link.compute(pause))
        self.model = jobs.by_layer(net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.state = gradwire.compress_fsdp(self.model, **options)
        self.link = on_one_link(self.state, self.model, rate)
        self.data = torch.Generator().manual_seed(rank + 1)
        self.gathered: list[int] = []
        self.losses: list[float] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            before = self.state.metrics().get("weights_bytes_sent", 0)
            self.optimizer.zero_grad()
            loss = loss_of(self.model, examples(self.data))
            loss.backward()
            self.link.wait()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))
            self.gathered.append(self.state.metrics().get("weights_bytes_sent", 0) - before)

    def found(self) -> dict[str, Any]:
        whole = nn.ParameterList([param.full_tensor() for param in self.model.parameters()])
        return {
            "auto": self.state.decisions(),
            "gathered": self.gathered,
            "losses": self.losses,
            "digest": digest(whole),
            "words": str(self.state),
        }


def decided(rank: int, rate: float = jobs.SLOW / 4, steps: int = 40, options: Any = None) -> dict[str, Any]:
    """A run in which auto decides, with options of ``compress_fsdp``."""
    training = Sharded(rank, rate, **(options or {}))
    training.run(steps)
    return training.found()


def repeated(rank: int) -> dict[str, Any]:
    """A run, the same decisions made again, one that goes on from a checkpoint, and one from an old state."""
    first = Sharded(rank)
    first.run(30)
    last = first.state.decisions()["decisions"][-1]["step"]
    saved = {
        "model": {name: each.clone() for name, each in first.model.state_dict().items()},
        "optimizer": copy.deepcopy(first.optimizer.state_dict()),
        "state": first.state.state_dict(),
        "data": first.data.get_state(),
    }
    first.run(3)
    first.state.close()
    again = Sharded(rank, decisions=first.state.decisions())
    again.run(33)
    again.state.close()
    resumed = Sharded(rank)
    resumed.run(1)
    resumed.model.load_state_dict(saved["model"])
    resumed.optimizer.load_state_dict(saved["optimizer"])
    resumed.state.load_state_dict(saved["state"])
    resumed.data.set_state(saved["data"])
    resumed.run(3)
    resumed.state.close()
    old = dict(saved["state"])
    decisions = json.loads(old["auto"])
    decisions["decisions"] = [
        {name: value for name, value in each.items() if name != "weights"} for each in decisions["decisions"]
    ]
    older = Sharded(rank)
    older.state.load_state_dict({**old, "auto": json.dumps(decisions)})
    older.run(2)
    older.state.close()
    return {
        "last": last,
        "first": first.found()["digest"],
        "again": again.found()["digest"],
        "resumed": resumed.found()["digest"],
        "bytes": [first.gathered[-1], again.gathered[-1], resumed.gathered[-1]],
        "plain": first.gathered[0],
        "older": older.gathered[-1],
    }


def block(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def switched(rank: int, setting: str) -> dict[str, Any]:
    """Weights are gathered in 8 bits from the third step on: a setting of FSDP, with the decisions of another run."""
    torch.manual_seed(0)
    blocks = [checkpoint_wrapper(block()) if setting == "checkpoint" else block() for _ in range(3)]
    model = nn.Sequential(*blocks)
    options: dict[str, Any] = {"mesh": init_device_mesh("cpu", (4,))}
    if setting == "replicas":
        options["mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    if setting == "bfloat16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if setting == "kept":
        options["reshard_after_forward"] = False
    for layer in blocks:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    plain = [{"step": 2, "choices": [], "weights": WEIGHTS}]
    state = gradwire.compress_fsdp(model, decisions=plain, min_numel=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data, sent = torch.Generator().manual_seed(rank), list[int]()
    for _ in range(4):
        before = state.metrics().get("weights_bytes_sent", 0)
        model(torch.randn(8, 64, generator=data)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        sent.append(state.metrics().get("weights_bytes_sent", 0) - before)
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in modules:
        module.unshard()
    used = [param.detach().float().clone() for param in model.parameters()]
    for module in modules:
        module.reshard()
    exact = [param.full_tensor().detach().clone() for param in model.parameters()]
    state.change("none")
    before = state.metrics().get("weights_bytes_sent", 0)
    model(torch.randn(8, 64, generator=data)).square().mean().backward()
    after = state.metrics().get("weights_bytes_sent", 0) - before
    state.close()
    return {"sent": sent, "used": used, "exact": exact, "after": after}


def settings(rank: int) -> dict[str, dict[str, Any]]:
    torch.set_num_threads(1)
    return {each: switched(rank, each) for each in ("plain", "kept", "bfloat16", "checkpoint", "replicas")}


def evaluated_in_between(rank: int) -> dict[str, torch.Tensor]:
    """The gradient of an input whose forward pass was made with exact weights, and another forward pass after that,
    when a method for weights had been chosen.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(64, 64, bias=False)
    exact = model.weight.detach().clone()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)), reshard_after_forward=True)
    state = gradwire.compress_fsdp(model, min_numel=16)
    x = torch.ones(1, 64, requires_grad=True)
    out = model(x)
    # Decisions fall in backward passes, here in that of another model.
    other = torch.ones(1, requires_grad=True)
    other.register_hook(lambda _: state._switch.use(WEIGHTS))
    other.sum().backward()
    with torch.no_grad():
        model(torch.eye(64))
    out.sum().backward()
    with torch.no_grad():
        seen = model(torch.eye(64)).t().clone()
    state.close()
    return {"exact": exact, "evaluated": seen, "gradient": x.grad[0]}


def loaded_apart(rank: int) -> str:
    """The error where rank 1 loads a state without the decision that rank 0's state has."""
    training = Sharded(rank)
    training.run(1)
    saved = training.state.state_dict()
    if rank == 0:
        auto = json.loads(saved["auto"])
        auto["decisions"] = [{"step": 1, "choices": [], "weights": WEIGHTS}]
        saved["auto"] = json.dumps(auto)
    try:
        training.state.load_state_dict(saved)
    except gradwire.GroupError as error:
        return str(error)
    return ""
