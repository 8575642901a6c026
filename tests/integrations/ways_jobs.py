"""Work of the ranks in the tests of the ways in which people train; each function asks one thing of DDP."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from gradwire.frontends.ddp import GradwireState, compress_ddp, gradwire_hook
from gradwire.frontends.optimizer import compress_optimizer
from tests.heard import heard
from tests.integrations.amp_jobs import kept, same
from tests.integrations.jobs import answers, asked_inside, batch, digest, model_of


def wrap(
    module: nn.Module, compressor: str = "topk", options: dict[str, Any] | None = None, **ddp: Any
) -> tuple[DistributedDataParallel, GradwireState]:
    model = DistributedDataParallel(module, **{"bucket_cap_mb": 0.02, **ddp})
    settings = {"ratio": 0.1} if compressor == "topk" and options is None else options or {}
    return model, compress_ddp(model, compressor, min_numel=0, **settings)


def backward(model: nn.Module, step: int, rank: int) -> Tensor:
    x, y = batch(step, rank)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss.detach()


class Account:
    """All gradients that ranks put in, less all that came out, is what waits: largest difference."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.params = dict(model.module.named_parameters())
        self.put = {name: torch.zeros_like(param) for name, param in self.params.items()}
        self.got = {name: torch.zeros_like(param) for name, param in self.params.items()}

    def local(self, loss: Tensor) -> None:
        grads = torch.autograd.grad(loss, list(self.params.values()), allow_unused=True)
        for name, grad in zip(self.put, grads, strict=True):
            if grad is not None:
                self.put[name] += grad

    def arrived(self) -> None:
        for name, param in self.params.items():
            if param.grad is not None:
                self.got[name] += param.grad

    def balance(self, state: GradwireState) -> float:
        worst, kept = 0.0, state.exchange.residuals.worker["residual"]
        for name, put in self.put.items():
            left = kept[name].view(put.shape) if name in kept else torch.zeros_like(put)
            mean = (put - left) / dist.get_world_size()
            dist.all_reduce(mean)
            worst = max(worst, float((mean - self.got[name]).abs().max()))
        return worst


def accumulation(rank: int) -> dict[str, Any]:
    model, state = wrap(model_of())
    account = Account(model)
    for step in range(6):
        x, y = batch(step, rank)
        account.local(nn.functional.cross_entropy(model.module(x), y))
        if step % 3 < 2:
            with model.no_sync():
                backward(model, step, rank)
            continue
        backward(model, step, rank)
        account.arrived()
        model.zero_grad()
    return {"steps": state.metrics()["steps"], "balance": account.balance(state)}


def uneven(rank: int) -> dict[str, Any]:
    """Join: rank 0 has three batches more. Ranks without data send what waits, and nothing twice."""
    model, state = wrap(model_of())
    account, optimizer = Account(model), torch.optim.SGD(model.parameters(), lr=0.0)
    with Join([model]):
        for step in range(6 - 3 * min(rank, 1)):
            x, y = batch(step, rank)
            account.local(nn.functional.cross_entropy(model.module(x), y))
            model.zero_grad()
            backward(model, step, rank)
            account.arrived()
            optimizer.step()
    kept = state.exchange.residuals.worker["residual"]
    left = torch.cat([kept[name] for name in sorted(account.put)])
    put = torch.cat([account.put[name].flatten() for name in sorted(account.put)])
    got = torch.cat([account.got[name].flatten() for name in sorted(account.put)])
    total = put - left
    dist.all_reduce(total)
    dist.broadcast(got, 0)
    # While a rank shadows the others, DDP still divides by the number of ranks that started.
    return {"steps": state.metrics()["steps"], "balance": float((total / dist.get_world_size() - got).abs().max())}


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(32, 24), nn.Linear(24, 10), nn.Linear(24, 10)

    def forward(self, x: Tensor, left: bool = True) -> Tensor:
        return (self.left if left else self.right)(self.trunk(x).relu())


def unused(rank: int) -> dict[str, Any]:
    """Each step uses one branch on one rank, the other on the other; later both the same one."""
    torch.manual_seed(0)
    model, state = wrap(Branches(), find_unused_parameters=True)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.2), []
    for step in range(8):
        x, y = batch(step % 2, rank)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x, left=(step + rank) % 2 == 0 if step < 4 else step % 2 == 0), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"digest": digest(model), "steps": state.metrics()["steps"], "better": losses[-1] < losses[0]}


def trained(rank: int, module: nn.Module, steps: int = 6, **ddp: Any) -> dict[str, Any]:
    model, state = wrap(module, **ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(float(backward(model, step % 2, rank)))
        optimizer.step()
    told = {"digest": digest(model), "steps": state.metrics()["steps"], "ratio": state.metrics()["ratio"]}
    return told | {"better": losses[-1] < losses[0], "losses": losses}


def static_graph(rank: int) -> dict[str, Any]:
    return trained(rank, model_of(), static_graph=True)


def bucket_views(rank: int) -> dict[str, Any]:
    return trained(rank, model_of(), gradient_as_bucket_view=True)


@cache
def bucket_copies(rank: int) -> dict[str, Any]:
    """The results with which those of other ways are compared, too."""
    return trained(rank, model_of())


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).relu()).relu())


def shared(rank: int) -> dict[str, Any]:
    return trained(rank, Tied())


class Recomputed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.body, self.reentrant = model_of(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        first: nn.Sequential = self.body[:4]  # type: ignore[index]
        x = x.requires_grad_() if self.reentrant else x
        hidden = checkpoint(first, x, use_reentrant=self.reentrant)
        return self.body[4:](hidden)  # type: ignore[index,no-any-return]


def recomputed(rank: int) -> dict[str, Any]:
    plain = bucket_copies(rank)
    ways = [trained(rank, Recomputed(reentrant=reentrant)) for reentrant in (False, True)]
    return plain | {"same": all(way["losses"] == plain["losses"] for way in ways)}


def several(rank: int) -> dict[str, Any]:
    """Two models in one process, their backward passes interleaved, one of them over a sub-group."""
    group = dist.new_group([0, 1])
    first, one = wrap(model_of())
    digests = []
    if rank < 2:
        second, two = wrap(model_of(seed=5), "qsgd", process_group=group)
        for step in range(4):
            x, y = batch(step, rank)
            loss = nn.functional.cross_entropy(first(x), y) + nn.functional.cross_entropy(second(x), y)
            loss.backward()
        assert two.exchange.channel.world == 2
        digests.append(digest_grads(second))
    else:
        for step in range(4):
            backward(first, step, rank)
    return {"digest": digest_grads(first), "second": digests, "steps": one.metrics()["steps"]}


def interleaved(rank: int) -> dict[str, Any]:
    """Two models whose backward passes come in turns are what each is by itself."""
    modules = [model_of(seed=seed) for seed in (3, 5)]
    alone = [trained(rank, model_of(seed=seed), steps=4)["digest"] for seed in (3, 5)]
    pairs = [wrap(module) for module in modules]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model, _ in pairs]
    for step in range(4):
        x, y = batch(step % 2, rank)
        losses = [nn.functional.cross_entropy(model(x), y) for model, _ in pairs]
        for optimizer in optimizers:
            optimizer.zero_grad()
        for loss in losses if step % 2 else losses[::-1]:
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    return {"same": [digest(model) for model, _ in pairs] == alone}


def scaled(rank: int) -> dict[str, Any]:
    """A GradScaler with three micro-batches a step, one of which overflows on one rank before the last."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    model, state = wrap(model_of(), options={"ratio": 0.1, "scaler": scaler, "strategy": "two_phase"})
    optimizer, skipped, untouched = torch.optim.SGD(model.parameters(), lr=0.1), [], False
    for step in range(5):
        before, weights = kept(state), digest(model)
        for micro in range(3):
            x, y = batch(3 * step + micro, rank)
            bad = (step, micro, rank) == (3, 0, 1)
            with nullcontext() if micro == 2 else model.no_sync():
                loss = nn.functional.cross_entropy(model(x), y) * (float("inf") if bad else 1.0)
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipped.append(digest(model) == weights)
        untouched = same(before, kept(state)) if step == 3 else untouched
    return {"digest": digest(model), "skipped": skipped, "untouched": untouched, "scale": scaler.get_scale()}


def digest_grads(model: nn.Module) -> float:
    return float(torch.cat([param.grad.flatten() for param in model.parameters()]).double().square().sum())


def changed(rank: int) -> dict[str, Any]:
    """The compressor changes during training; nothing that waits is lost, and what would lose it is refused."""
    model, state = wrap(model_of())
    account, refused = Account(model), []
    for step in range(8):
        if step == 2:
            state.change("twobit", threshold=1e-3)
        if step == 4:
            state.change("powersgd", rank=2)
        if step == 6:
            state.change("qsgd", bits=4, memory="residual", strategy="broadcast")
        x, y = batch(step, rank)
        account.local(nn.functional.cross_entropy(model.module(x), y))
        model.zero_grad()
        backward(model, step, rank)
        account.arrived()
    balance = account.balance(state)
    without_memory = partial(state.change, "topk", ratio=0.1, memory="none", drop=True)
    for call in (lambda: state.change("qsgd"), lambda: state.change("topk", ratio=0.1 + 0.1 * rank), without_memory):
        try:
            call()
        except Exception as error:
            refused.append(str(error))
    without_memory(force=True)
    backward(model, 8, rank)
    state.change("qsgd", drop=True)
    backward(model, 9, rank)
    return {
        "balance": balance,
        "refused": refused,
        "norm": state.metrics()["residual_norm"],
        "digest": digest_grads(model),
    }


def layers() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 16))


def passed(model: nn.Module, step: int, rank: int, scale: float = 1.0) -> Tensor:
    """One backward pass through such a model, which hands out its loss."""
    loss = scale * model(torch.randn(4, 16, generator=torch.Generator().manual_seed(10 * step + rank))).square().mean()
    loss.backward()
    return loss


def by_hand(model: nn.Module, *, data: bool) -> None:
    """The step of an optimizer of no class, whose writes torch counts, or not."""
    with torch.no_grad():
        for param in model.parameters():
            (param.data if data else param).sub_(0.1 * param.grad)
            param.grad = None


def warned(rank: int, loop: Callable[[DistributedDataParallel, GradwireState, int], None], **ddp: Any) -> list[str]:
    """The warnings of dropped gradients while a loop trains."""
    said = heard(logging.WARNING)
    loop(*wrap(layers(), **ddp), rank)
    return [each for each in said if "set to None or to zero" in each]


def used(make: Callable[[Sequence[nn.Parameter]], Any], *, none: bool = True, passes: int = 1) -> Any:
    """A loop in which each gradient is used by the optimizers that are made."""

    def loop(model: DistributedDataParallel, state: GradwireState, rank: int) -> None:
        optimizers = make(list(model.parameters()))
        for step in range(3):
            for micro in range(passes):
                passed(model, passes * step + micro, rank)
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad(set_to_none=none)

    return loop


def sgd(params: Sequence[nn.Parameter], **options: Any) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(params, lr=0.1, **options)]


def one_each(params: Sequence[nn.Parameter]) -> list[torch.optim.Optimizer]:
    return sgd(params[:1]) + sgd(params[1:])


def in_graph(params: Sequence[nn.Parameter]) -> list[torch.optim.Optimizer]:
    (optimizer,) = sgd(params)
    optimizer.step = torch.compile(optimizer.step, backend="aot_eager")  # type: ignore[method-assign]
    return [optimizer]


def sharded_steps(params: Sequence[nn.Parameter]) -> list[torch.optim.Optimizer]:
    return [ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=0.1)]


def nobodys(model: DistributedDataParallel, state: GradwireState, rank: int, *, data: bool) -> None:
    for step in range(3):
        passed(model, step, rank)
        by_hand(model, data=data)


def skipped(model: DistributedDataParallel, state: GradwireState, rank: int) -> None:
    """A scaler, which the state may follow, skips a step in which one rank alone has overflowed."""
    (optimizer,), scaler = sgd(list(model.parameters())), state.units.scaler or torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    for step in range(4):
        passed(model, step, rank, float("inf") if (step, rank) == (2, 1) else scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def dropped(model: DistributedDataParallel, state: GradwireState, rank: int, *, none: bool = True) -> None:
    """The gradients of the last pass but one are dropped."""
    used(sgd, none=none)(model, state, rank)
    passed(model, 3, rank)
    model.zero_grad(set_to_none=none)
    passed(model, 4, rank)


def dropped_by_hand(model: DistributedDataParallel, state: GradwireState, rank: int, *, data: bool) -> None:
    nobodys(model, state, rank, data=data)
    passed(model, 3, rank)
    model.zero_grad()
    passed(model, 4, rank)


def in_turns(model: DistributedDataParallel, state: GradwireState, rank: int) -> None:
    """Each of two optimizers has a pass of its own, and drops what the other's pass gives to its parameters."""
    optimizers = one_each(list(model.parameters()))
    for step in range(4):
        optimizers[step % 2].zero_grad()
        passed(model, step, rank)
        optimizers[step % 2].step()


def used_in_turns(model: DistributedDataParallel, state: GradwireState, rank: int) -> None:
    """Each of two optimizers has a pass of its own, and uses what both passes give to its parameters."""
    optimizers = one_each(list(model.parameters()))
    for step in range(4):
        passed(model, step, rank)
        optimizers[step % 2].step()
        optimizers[step % 2].zero_grad()


USED: dict[str, Any] = {
    "none": used(sgd),
    "zero": used(sgd, none=False),
    "accumulated": used(sgd, passes=2),
    "accumulated, zero": used(sgd, none=False, passes=2),
    "fused": used(partial(sgd, fused=True)),
    "foreach": used(partial(sgd, foreach=True)),
    "compiled": used(in_graph),
    "sharded": used(sharded_steps),
    "two optimizers": used(one_each),
    "two optimizers in turns": used_in_turns,
    "nobody's": partial(nobodys, data=False),
    "nobody's, by data": partial(nobodys, data=True),
    "skipped": skipped,
}
LOST: dict[str, Any] = {
    "none": dropped,
    "zero": partial(dropped, none=False),
    "nobody's": partial(dropped_by_hand, data=False),
    "nobody's, by data": partial(dropped_by_hand, data=True),
    "two optimizers in turns": in_turns,
}


def used_or_lost(rank: int) -> dict[str, Any]:
    """The warnings of gradients that are used, and of those that are dropped."""
    loops = {"used": USED, "lost": LOST}
    told = {kind: {name: warned(rank, loop) for name, loop in loops[kind].items()} for kind in loops}
    for kind, name in (("used", "accumulated, zero"), ("lost", "zero")):
        for flag in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters"):
            told[kind][f"{name}, {flag}"] = warned(rank, loops[kind][name], **{flag: True})
    followed = {"ratio": 0.1, "scaler": torch.amp.GradScaler("cpu")}
    told["used"]["skipped, followed"] = warned(rank, skipped, options=followed)
    told["used"]["a method that keeps nothing"] = warned(rank, dropped, compressor="qsgd")
    return told


def generated(rank: int) -> dict[str, Any]:
    """A generator learns through a discriminator, in the ways that the warning names, and in the one that it warns of:
    whether gradients of the discriminator's own passes are all there, and what is said."""
    told = {}
    for way in ("exchanged", "no_sync", "module"):
        said = heard(logging.WARNING)
        critic, state = wrap(layers(), "powersgd", {"rank": 1})
        maker, _ = wrap(layers(), "powersgd", {"rank": 1})
        account = Account(critic)
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (critic, maker)]
        for step in range(12):
            noise, x = (torch.randn(4, 16, generator=torch.Generator().manual_seed(seed + rank)) for seed in (step, 99))
            critic.zero_grad()
            with torch.no_grad():
                made = maker.module(noise)
            account.local((critic.module(x) - critic.module(made)).square().mean())
            (critic(x) - critic(made)).square().mean().backward()
            account.arrived()
            optimizers[0].step()
            maker.zero_grad()
            with critic.no_sync() if way == "no_sync" else nullcontext():
                (critic.module if way == "module" else critic)(maker(noise)).square().mean().backward()
            optimizers[1].step()
        balance = account.balance(state)
        told[way] = {"balance": balance, "said": [each for each in said if "set to None or to zero" in each]}
    return told


def asked(rank: int) -> dict[str, Any]:
    """The calls that are meant for between two steps, inside a backward pass and after it."""
    model, state = wrap(model_of())
    told = asked_inside(state, next(model.parameters()), lambda: backward(model, 0, rank))
    before = state.state_dict()["step"]
    backward(model, 1, rank)
    state.change("qsgd", bits=4, drop=True)
    plain = model_of()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    other = compress_optimizer(optimizer, plain, "topk")
    saved: list[dict[str, Any]] = []
    handle = next(plain.parameters()).register_hook(lambda _: saved.append(other.state_dict()))
    backward(plain, 0, rank)
    handle.remove()
    state.close()
    return {"told": told, "step": before, "digest": digest_grads(model), "by the optimizer": saved[0]["step"]}


def elsewhere(rank: int) -> str:
    """The plain form on the module inside a DDP model, which averages over other ranks than the state does."""
    group, module = dist.new_group([0, 1]), model_of()
    state = GradwireState(module, "topk", timeout=20.0)
    if rank == 2:
        return ""
    model = DistributedDataParallel(module, process_group=group)
    model.register_comm_hook(state, gradwire_hook)
    return answers({"": lambda: backward(model, 0, rank)})[""]


def compiled(rank: int) -> dict[str, Any]:
    plain = bucket_copies(rank)
    # Its graphs are cut at buckets, the first of which torch wants to be the smallest.
    inside = trained(rank, torch.compile(model_of(), backend="aot_eager"), bucket_cap_mb=25)  # type: ignore[arg-type]
    model, state = wrap(model_of(), bucket_cap_mb=25)
    outside = torch.compile(model, backend="aot_eager")
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        losses.append(float(backward(outside, step % 2, rank)))
        optimizer.step()
    return {
        "inside": inside["losses"],
        "outside": losses,
        "plain": plain["losses"],
        "steps": state.metrics()["steps"],
    }


WAYS = {
    way.__name__: way
    for way in (
        accumulation,
        uneven,
        unused,
        static_graph,
        bucket_views,
        bucket_copies,
        shared,
        recomputed,
        several,
        interleaved,
        scaled,
        changed,
        used_or_lost,
        generated,
        asked,
        elsewhere,
        compiled,
    )
}


def all_ways(rank: int) -> dict[str, Any]:
    """Every way, in one group; one that fails says so by itself."""
    told: dict[str, Any] = {}
    for name, way in WAYS.items():
        torch._dynamo.reset()
        try:
            told[name] = way(rank)
        except Exception:
            told[name] = traceback.format_exc()
            if dist.get_world_size() > 1:
                break
    return told
