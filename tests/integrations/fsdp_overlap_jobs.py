"""Work of the ranks in the tests of overlapping exchanges; each function is one launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import gradwire.engine.owner_plan
import gradwire.frontends.sharded
from gradwire.auto.controller import AutoController
from gradwire.frontends.fsdp import compress_fsdp
from gradwire.transport import hosts
from tests.integrations.fsdp_jobs import gradients, sharded, whole
from tests.integrations.jobs import answers, batch, model_of

STEPS = 4

CASES: dict[str, dict[str, Any]] = {
    "topk": {"compressor": "topk", "ratio": 0.1},
    "blockwise8": {"compressor": "blockwise8", "weights": "blockwise8"},
    "differences": {"compressor": "qsgd", "bits": 4, "memory": "residual", "weights": "ef21:inner=loco"},
    "some": {"compressor": "loco", "exclude": ["2.*"]},
    "auto, watching": {"compressor": "auto"},
    "auto, decided": {
        "compressor": "auto",
        "decisions": [
            {
                "step": 2,
                "choices": [{"method": "eden:bits=2", "strategy": "allgather", "params": ["0.weight", "2.weight"]}],
            }
        ],
    },
}


def trained(rank: int, case: str, awaited: bool) -> tuple[list[Tensor], int]:
    """The weights after some steps, in which a factor changes, and how many modules were reduced meanwhile.

    Args:
        rank: this rank.
        case: a key of ``CASES``.
        awaited: true: somebody may read each gradient as soon as it is there.
    """
    model = sharded(init_device_mesh("cpu", (2,)))
    state = compress_fsdp(model, min_numel=0, **CASES[case])
    for param in model.parameters() if awaited else ():
        param.register_post_accumulate_grad_hook(lambda _: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for step in range(STEPS):
        if step == 2:
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.set_gradient_divide_factor(3.0)
        for micro in range(2):
            model.set_requires_gradient_sync(micro == 1)
            x, y = batch(2 * step + micro, rank)
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        # The second step adds to gradients that are there.
        if step != 0:
            optimizer.zero_grad()
    weights = [param.clone() for param in whole(model).values()]
    state.close()
    return weights, state.background.begun


def prefetched(rank: int) -> dict[str, list[list[Tensor]]]:
    """The weights after some steps, by case: without prefetching, and with one and two modules of it in each pass."""
    return {case: [_after(rank, case, *ahead) for ahead in ((0, 0), (1, 0), (0, 1), (2, 2))] for case in CASES}


def _after(rank: int, case: str, forward: int, backward: int) -> list[Tensor]:
    model = sharded(init_device_mesh("cpu", (2,)))
    chain = [module for module in model.children() if isinstance(module, FSDPModule)]
    assert len(chain) > 2
    for i, module in enumerate(chain):
        module.set_modules_to_forward_prefetch(chain[i + 1 : i + 1 + forward])
        module.set_modules_to_backward_prefetch(chain[max(0, i - backward) : i][::-1])
    state = compress_fsdp(model, min_numel=0, **CASES[case])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        x, y = batch(step, rank)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(x)
    weights = [param.clone() for param in whole(model).values()]
    state.close()
    return weights


def overlapped(rank: int) -> dict[str, Any]:
    """Each case, reduced while the backward pass goes on, and where each gradient is awaited."""
    told: dict[str, Any] = {
        case: {awaited: trained(rank, case, awaited) for awaited in (False, True)} for case in CASES
    }
    return {**told, "failed": failed(rank), "watched": watched(rank), "single": single(rank)}


def single(rank: int) -> dict[str, Any]:
    """One layer, of which FSDP reduces the gradients at the very end, because its input needs none."""
    model = nn.Linear(32, 10)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    state = compress_fsdp(model, "blockwise8", min_numel=0)
    x, y = batch(0, rank)
    nn.functional.cross_entropy(model(x), y).backward()
    told = {"begun": state.background.begun, "under way": len(state.background._under_way)}
    state.close()
    return told


class Failing(Function):
    """An identity whose gradient cannot be computed where that is wished."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fails: bool) -> Tensor:
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.fails:
            raise ArithmeticError("this step is lost")
        return grad, None


class Broken(nn.Module):
    """A layer in front of those whose gradients are reduced first; its own pass may fail."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.fails = nn.Linear(32, 48), nn.Linear(48, 10), False

    def forward(self, x: Tensor) -> Tensor:
        return self.second(Failing.apply(self.first(x), self.fails))


def failed(rank: int) -> dict[str, Any]:
    """A backward pass that fails after a reduction was started; the passes after it are like any other."""
    mesh = init_device_mesh("cpu", (2,))

    def steps(model: nn.Module) -> list[Tensor]:
        model.zero_grad()
        x, y = batch(0, rank)
        nn.functional.cross_entropy(model(x), y).backward()
        return [grad.clone() for grad in gradients(model).values()]

    def model_and_state() -> tuple[Any, Any]:
        model = Broken()
        for layer in (model.first, model.second):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, compress_fsdp(model, "blockwise8", min_numel=0)

    model, state = model_and_state()
    wanted = steps(model)
    begun = state.background.begun
    model.fails = True
    said = answers({"": lambda: steps(model)})[""]
    under_way = state.background.begun - begun
    model.fails = False
    model.reset_iter_state()
    found = steps(model)
    saved, left = state.state_dict(), list[int]()
    for call in (lambda: state.load_state_dict(saved), lambda: state.change("blockwise8")):
        model.fails = True
        answers({"": lambda: steps(model)})
        model.fails = False
        model.reset_iter_state()
        call()
        left.append(len(state.background._under_way))
    state.close()
    return {
        "said": said,
        "under way": under_way,
        "left": left,
        "same": all(torch.equal(*pair) for pair in zip(found, wanted, strict=True)),
    }


def watched(rank: int) -> dict[str, Any]:
    """Weights that are gathered in inference mode between steps; FSDP alone wants a step before the first of these."""
    model = sharded(init_device_mesh("cpu", (2,)))
    state = compress_fsdp(model, "none", weights="blockwise8", min_numel=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batch(0, rank)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with torch.inference_mode():
        before = model(x).clone()
    with torch.no_grad():
        same = torch.equal(before, model(x))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with torch.inference_mode():
        after = model(x).clone()
    plain = model_of()
    plain.load_state_dict(whole(model))
    state.close()
    with torch.no_grad():
        return {"same": same, "off": float((after - plain(x)).norm() / plain(x).norm())}


def alone(rank: int) -> list[str]:
    """The error of rank 0 where the other one makes no backward pass, or no forward pass."""
    mesh, heard = init_device_mesh("cpu", (2,)), []
    for options in ({"compressor": "blockwise8"}, {"compressor": "none", "weights": "blockwise8"}):
        model = sharded(mesh, reshard_after_forward=False)
        compress_fsdp(model, min_numel=0, timeout=2, **options)
        x, y = batch(0, rank)
        if "weights" not in options:
            loss = nn.functional.cross_entropy(model(x), y)
            heard.append(answers({"": loss.backward})[""] if rank == 0 else "")
        else:
            heard.append(answers({"": lambda m=model, x=x: m(x)})[""] if rank == 0 else "")
    return heard


def after_steps(model: nn.Module, rank: int, steps: int) -> list[Tensor]:
    """Train a model for some steps, and return its weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        x, y = batch(step, rank)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [param.clone() for param in whole(model).values()]


def observed(rank: int, compressor: str) -> list[list[Tensor]]:
    """The weights after two steps in which rank 0 alone reads each gradient at once, and after two without that."""
    found = []
    for watches in (rank == 0, False):
        model = sharded(init_device_mesh("cpu", (2,)))
        state = compress_fsdp(model, compressor, min_numel=0, timeout=20)
        for param in model.parameters() if watches else ():
            param.register_post_accumulate_grad_hook(lambda _: None)
        found.append(after_steps(model, rank, 2))
        state.close()
    return found


def late_hosts(rank: int) -> list[Tensor]:
    """The weights after decisions to sum within hosts in a layer that is not the first to be reduced; before them, how
    many reductions were under way when ranks told each other their hosts.
    """
    hosts.own_host = lambda: f"host {rank // 2}".encode().ljust(16)
    model = sharded(init_device_mesh("cpu", (4,)))
    choice = {"method": "bf16", "strategy": "hierarchical", "params": ["2.weight", "2.bias"]}
    state = compress_fsdp(model, "auto", min_numel=0, decisions=[{"step": 2, "choices": [choice]}])
    asked, under_way = hosts.hosts_of, list[int]()

    def hosts_of(*given: Any) -> Any:
        under_way.append(len(state.background._under_way))
        return asked(*given)

    gradwire.engine.owner_plan.hosts_of = hosts_of  # type: ignore[assignment]
    weights = after_steps(model, rank, 3)
    state.close()
    return [torch.tensor(under_way), *weights]


def apart(rank: int) -> dict[str, Any]:
    """The weights, and the reductions that another thread made, where FSDP's group seems to have a backend that the
    exchange's has not; and whether the controller knew that each was waited for.
    """
    cases = ("auto, watching", "blockwise8", "some")
    alike = {case: trained(rank, case, awaited=True)[0] for case in cases}
    gradwire.frontends.sharded.backend_of = lambda group, _: group.group_name  # type: ignore[assignment,union-attr]
    before, known = AutoController.before, list[bool]()

    def noted(*given: Any, **named: Any) -> Any:
        run = before(*given, **named)
        known.append(run is not None and run.blocking)
        return run

    AutoController.before = noted  # type: ignore[method-assign]
    found = {case: trained(rank, case, awaited=False) for case in cases}
    told = {case: (begun, weights, alike[case]) for case, (weights, begun) in found.items()}
    return {"told": told, "known": known}
