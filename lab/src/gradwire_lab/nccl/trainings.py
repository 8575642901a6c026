"""Trainings whose numbers are known: the same over NCCL on a GPU and over Gloo on a CPU.

In the exact ones all weights, inputs and gradients are small integers times powers of two, so that every sum is exact
in float32, whatever its order: two devices, and any order of the ranks, must give the same bits. Their optimizer takes
the sign of the mean gradient. The others are ordinary: there the ranks must be equal in every bit, and the losses close
to those over Gloo.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import default_strategy
from gradwire.errors import ConfigError
from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.fsdp import compress_fsdp
from gradwire.frontends.process_group import wrap_group
from gradwire.optim import CompressedStep
from gradwire.optim.local.diloco import DiLoCo

__all__ = [
    "STEPS",
    "SWITCHING",
    "SignStep",
    "Towers",
    "Trained",
    "Training",
    "all_trainings",
    "batch",
    "difference",
    "first_tier",
    "strategies_of",
    "train",
    "train_plainly",
    "until_switched",
    "without_compression",
]

STEPS = 3
"""Steps of a training."""

CAP, CAP_COMPILED = 0.015, 1.0
"""Megabytes of a bucket of DDP: there are several. Torch's compiler takes none that are smaller than DDP's first."""

INPUTS, HIDDEN, OUTPUTS, TOWERS, BATCH = 24, 48, 32, 4, 8

GRID = 2.0**-4
"""Weights of exact trainings are multiples of it, in [-1, 1]."""

NEAR = 0.02
"""The share of the first loss by which the losses of two devices may differ."""

SMALL: dict[str, dict[str, Any]] = {"powersgd": {"rank": 2}, "topk": {"ratio": 0.1}, "dgc": {"ratio": 0.1}}
"""Parameters of methods for a model this small."""

DECIDES, WATCHED = 100, 3
"""Most steps that auto has to switch in, and steps after that."""


class Towers(nn.Module):
    """Four networks of two layers, whose outputs are added.

    Args:
        exact: weights are multiples of ``GRID``.
        checkpointed: activations of a tower are computed again in the backward pass.
        width: factor of the hidden layers.
    """

    def __init__(self, *, exact: bool, checkpointed: bool = False, width: int = 1) -> None:
        super().__init__()
        hidden, own = width * HIDDEN, torch.Generator().manual_seed(3)
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, OUTPUTS)) for _ in range(TOWERS)
        )
        self.checkpointed = checkpointed
        with torch.no_grad():
            for param in self.parameters():
                if exact:
                    param.copy_(torch.randint(-8, 9, param.shape, generator=own) * GRID)
                else:
                    param.copy_(torch.randn(param.shape, generator=own) * 0.2)

    def forward(self, x: Tensor, skipped: int | None = None) -> Tensor:
        """Return the sum of the towers' outputs.

        Args:
            x: shape ``(batch, INPUTS)``.
            skipped: number of the tower that is left out; None: none.
        """
        run: Callable[[nn.Module], Tensor] = lambda tower: tower(x)  # noqa: E731
        if self.checkpointed:
            run = lambda tower: cast(Tensor, checkpoint(tower, x, use_reentrant=False))  # noqa: E731
        parts = [run(tower) for number, tower in enumerate(self.towers) if number != skipped]
        return torch.stack(parts).sum(0)


class SignStep(Optimizer):
    """An optimizer that moves each weight by ``GRID`` against the sign of its gradient, within [-1, 1].

    Args:
        params: parameters, or shards of them.
    """

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make a step."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    own, grad = _local(param), _local(param.grad)
                    own.sub_(grad.sign().to(own.dtype) * GRID).clamp_(-1, 1)


@dataclass(frozen=True)
class Training:
    """A training that is made over both backends.

    Args:
        case: name in the rows.
        kind: "ddp", "fsdp", "group", "step" or "local".
        method: registered method; None: no compression.
        options: further arguments of the call that compresses.
        settings: names of what is special: "accumulate", "overflow", "unused", "static", "checkpoint", "compile",
            "bf16", "hsdp", "told".
        exact: true where it must end with the same bits over both backends.
        ranks: numbers of ranks.
        large: the towers have 64 times as many hidden units.
    """

    case: str
    kind: str
    method: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    exact: bool = True
    ranks: tuple[int, ...] = (2, 4)
    large: bool = False


@dataclass(frozen=True)
class Trained:
    """The result of a training on one rank.

    Args:
        losses: losses of the steps.
        bits: digests of this rank's gradients and weights after each step.
        whole: digest of all weights at the end, which is the same on all ranks.
        facts: further entries of the row.
    """

    losses: list[float]
    bits: list[str]
    whole: str
    facts: dict[str, Any] = field(default_factory=dict)


@cache
def first_tier() -> tuple[str, ...]:
    """The methods of the first tier; ``compose`` is a way to write several of them."""
    names = registry.names("compressors")
    return tuple(name for name in names if registry.tier("compressors", name) == "first" and name != "compose")


@cache
def strategies_of(method: str) -> tuple[str, ...]:
    """The strategies of the first tier by which a method's payloads can travel.

    >>> strategies_of("twobit"), strategies_of("powersgd")
    (('allgather', 'broadcast', 'hierarchical', 'two_phase'), ('allreduce',))
    """
    found = []
    for name in registry.names("strategies"):
        if registry.tier("strategies", name) != "first":
            continue
        try:
            Exchange(registry.build("compressors", method), strategy=name)
        except ConfigError:
            continue
        found.append(name)
    return tuple(found)


def all_trainings(*, few: bool = False) -> list[Training]:
    """All trainings, those that matter most first.

    Args:
        few: one or two of each kind.
    """
    methods = ("twobit", "powersgd") if few else first_tier()
    settings: tuple[tuple[str, str], ...] = (
        *(("no_sync", "accumulate"), ("loss scaling, an overflow on one rank", "overflow")),
        *(("unused parameters", "unused"), ("static graph", "static"), ("activation checkpointing", "checkpoint")),
    )
    found = [_of_method(name, default_strategy(registry.build("compressors", name), 2)) for name in methods]
    found += [
        Training(f"ddp {name}, {text}", "ddp", name, settings=(setting,), ranks=(2, 4) if name == "twobit" else (2,))
        for text, setting in settings
        for name in (("twobit",) if few else ("twobit", "eden", "none"))
    ]
    found += [
        Training("fsdp qsgd", "fsdp", "qsgd"),
        Training("fsdp plain, bf16", "fsdp", None, settings=("bf16",), exact=False),
        Training("fsdp blockwise8, bf16", "fsdp", "blockwise8", settings=("bf16",), exact=False),
        Training(
            "fsdp blockwise8, bf16, weights in blockwise8",
            "fsdp",
            "blockwise8",
            {"weights": "blockwise8"},
            ("bf16",),
            exact=False,
        ),
        Training("hsdp 2 x 2, qsgd", "fsdp", "qsgd", settings=("hsdp",), ranks=(4,)),
        Training("wrap_group bf16-fp32sum", "group", "bf16-fp32sum"),
        Training("wrap_group blockwise8", "group", "blockwise8"),
        Training("CompressedStep eden", "step", "eden", exact=False),
        Training("CompressedStep topk, keep", "step", "topk", {"keep": True, "ratio": 0.1}, exact=False),
        Training("CompressedStep eden, late", "step", "eden", {"late": True}, exact=False),
        Training("DiLoCo qsgd", "local", "qsgd", {"every": 2}, exact=False),
        Training("auto, told its decisions", "ddp", "auto", settings=("told",)),
    ]
    known = {each.case for each in found}
    others = [_of_method(name, strategy) for name in methods for strategy in strategies_of(name)]
    compiled = Training(
        "ddp twobit, torch.compile", "ddp", "twobit", settings=("compile",), exact=False, ranks=(2,), large=True
    )
    return found + ([] if few else [*(each for each in others if each.case not in known), compiled])


def _of_method(name: str, strategy: str) -> Training:
    """A training of a method whose payloads travel in one way.

    Over NCCL each rank may seem to be a host of its own, so ``hierarchical`` is told which ranks share one.
    """
    told = "hierarchical:ranks_per_host=2" if strategy == "hierarchical" else strategy
    ranks = (4,) if strategy == "hierarchical" else (2, 4)
    options = {**SMALL.get(name, {}), "strategy": told}
    exact = capabilities.portable(registry.build("compressors", name))
    return Training(f"ddp {name}, {strategy}", "ddp", name, options, exact=exact, ranks=ranks)


def batch(step: int, rank: int, device: str, *, exact: bool, part: int = 0) -> tuple[Tensor, Tensor]:
    """The inputs of a rank in a step, and what the outputs are multiplied by, or should be."""
    own = torch.Generator().manual_seed(1000 * step + 10 * rank + part)
    if exact:
        x = torch.randint(-1, 2, (BATCH, INPUTS), generator=own).float()
        y = torch.randint(0, 2, (BATCH, OUTPUTS), generator=own).float() * 2 - 1
    else:
        x = torch.randn(BATCH, INPUTS, generator=own)
        y = (x @ torch.linspace(-1, 1, INPUTS * OUTPUTS).view(INPUTS, OUTPUTS)).sin()
    return x.to(device), y.to(device)


def loss_of(out: Tensor, y: Tensor, *, exact: bool) -> Tensor:
    """A loss that is linear in the outputs, so that its gradient is exact, or the mean square of what is missing."""
    return (out * y).sum() / BATCH if exact else (out - y).square().mean()


def train(rank: int, device: str, training: Training) -> Trained:
    """Make a training on one rank of the default group."""
    torch.manual_seed(0)
    return _KINDS[training.kind](rank, device, training)


def train_plainly(rank: int, device: str, training: Training) -> Trained:
    """Make a training as it is written, without torch's compiler, for another one to be compared with."""
    settings = tuple(each for each in training.settings if each != "compile")
    return train(rank, device, replace(training, settings=settings))


def difference(training: Training, found: Trained, wanted: Trained | None, wholes: Sequence[str]) -> str | None:
    """Say how a training differs from the same over Gloo, or the ranks from each other; None if nothing is wrong.

    Args:
        training: training that was made.
        found: its result on this rank.
        wanted: the result of the same rank over Gloo on the CPU; None: there is nothing to compare with.
        wholes: digests of all weights, one of each rank.
    """
    if len(set(wholes)) > 1:
        return "the ranks ended with different weights"
    if wanted is None:
        return None
    if training.exact:
        wrong = [n for n, pair in enumerate(zip(found.bits, wanted.bits, strict=True), 1) if pair[0] != pair[1]]
        return f"other bits than over Gloo on the CPU from step {wrong[0]} on" if wrong else None
    far = max(abs(one - other) for one, other in zip(found.losses, wanted.losses, strict=True))
    if far <= NEAR * abs(wanted.losses[0]):
        return None
    return f"losses differ from those over Gloo on the CPU by {far:.3g}, the first one is {wanted.losses[0]:.3g}"


class _TrainingSteps:
    """The steps of a training, and what is noted of them."""

    def __init__(self, rank: int, device: str, training: Training) -> None:
        self.rank, self.device, self.training = rank, device, training
        self.losses: list[float] = []
        self.bits: list[str] = []
        self.scaler: Any = None
        if "overflow" in training.settings:
            self.scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=1 << 20)

    def run(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        params: Sequence[Tensor],
        unsynchronised: Callable[[], AbstractContextManager[object]] = nullcontext,
        steps: int = STEPS,
    ) -> None:
        """Make the steps."""
        exact, settings = self.training.exact, self.training.settings
        parts = 2 if "accumulate" in settings else 1
        for step in range(len(self.losses), len(self.losses) + steps):
            optimizer.zero_grad()
            total = torch.zeros((), device=self.device)
            for part in range(parts):
                x, y = batch(step, self.rank, self.device, exact=exact, part=part)
                with unsynchronised() if part < parts - 1 else nullcontext():
                    options = {"skipped": 0} if "unused" in settings and self.rank == 0 and step % 2 else {}
                    loss = loss_of(model(x, **options).float(), y, exact=exact)
                    if self.scaler is not None:
                        broken = self.rank == 1 and step == 1
                        self.scaler.scale(loss * float("inf") if broken else loss).backward()
                    else:
                        loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            if self.scaler is not None:
                self.scaler.step(optimizer)
                self.scaler.update()
            else:
                optimizer.step()
            self.note(total, params)

    def note(self, loss: Tensor, params: Sequence[Tensor]) -> None:
        grads = [param.grad for param in params if param.grad is not None]
        self.losses.append(float(loss))
        self.bits.append(digest([*params, *grads]))

    def trained(self, model: nn.Module, **facts: Any) -> Trained:
        full = [param.full_tensor() if isinstance(param, DTensor) else param for param in model.parameters()]
        return Trained(self.losses, self.bits, digest(full), facts)


def digest(tensors: Sequence[Tensor]) -> str:
    """A SHA-256 of the numbers of some tensors, of shards those of this rank; zeros of both signs count as the same,
    because a sum of both may be either.
    """
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(_local(tensor.detach()).float().add(0.0).cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _optimizer(params: Any, training: Training) -> Optimizer:
    return SignStep(params) if training.exact else torch.optim.SGD(params, lr=0.01)


def _ddp(rank: int, device: str, training: Training) -> Trained:
    settings, steps = training.settings, _TrainingSteps(rank, device, training)
    compiled = "compile" in settings
    module = Towers(exact=training.exact, checkpointed="checkpoint" in settings, width=64 if training.large else 1).to(
        device
    )
    model = DistributedDataParallel(
        module,
        bucket_cap_mb=CAP_COMPILED if training.large else CAP,
        static_graph="static" in settings,
        find_unused_parameters="unused" in settings,
    )
    options = dict(training.options)
    if "told" in settings:
        options["decisions"] = _decisions(module)
    if steps.scaler is not None:
        options["scaler"] = steps.scaler
    state = compress_ddp(model, training.method, **options) if training.method is not None else None
    try:
        # What the compiler makes for a GPU is tried there; on a CPU, where that takes minutes, only that it is traced.
        run = torch.compile(model, backend="inductor" if device == "cuda" else "aot_eager") if compiled else model
        optimizer = _optimizer(module.parameters(), training)
        steps.run(cast(nn.Module, run), optimizer, list(module.parameters()), model.no_sync)
        facts = {} if state is None else {"ratio": state.metrics()["ratio"]}
        return steps.trained(module, **facts)
    finally:
        if state is not None:
            state.close()


def _decisions(module: nn.Module) -> list[dict[str, Any]]:
    """Decisions of auto: it names a method after two steps, and another one for some parameters after the third."""
    names = [name for name, param in module.named_parameters() if param.numel() >= 1024]
    first, second = ({"method": method, "strategy": "allgather"} for method in ("qsgd", "bf16"))
    return [
        {"step": 2, "choices": [first | {"params": names}]},
        {"step": 3, "choices": [first | {"params": names[:2]}, second | {"params": names[2:]}]},
    ]


def _fsdp(rank: int, device: str, training: Training) -> Trained:
    settings, steps, world = training.settings, _TrainingSteps(rank, device, training), dist.get_world_size()
    module = Towers(exact=training.exact).to(device)
    if "hsdp" in settings:
        mesh = init_device_mesh(device, (2, world // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(device, (world,))
    _sharded(module, mesh, "bf16" in settings)
    if training.method is not None:
        compress_fsdp(module, training.method, min_numel=0, **training.options)
    steps.run(module, _optimizer(module.parameters(), training), list(module.parameters()))
    return steps.trained(module)


def _sharded(module: Towers, mesh: DeviceMesh, half: bool) -> None:
    options: dict[str, Any] = {"mesh": mesh}
    if half:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for tower in module.towers:
        fully_shard(tower, **options)
    fully_shard(module, **options)
    assert isinstance(module, FSDPModule)


def _group(rank: int, device: str, training: Training) -> Trained:
    steps, module = _TrainingSteps(rank, device, training), Towers(exact=training.exact).to(device)
    group = wrap_group(None, training.method, min_numel=512, **training.options)
    try:
        model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=CAP)
        steps.run(model, _optimizer(module.parameters(), training), list(module.parameters()), model.no_sync)
        return steps.trained(module)
    finally:
        group.close()


def _step(rank: int, device: str, training: Training) -> Trained:
    return _exchanged(rank, device, training, CompressedStep)


def _rounds(rank: int, device: str, training: Training) -> Trained:
    return _exchanged(rank, device, training, DiLoCo)


def _exchanged(rank: int, device: str, training: Training, make: Callable[..., Any]) -> Trained:
    steps, module = _TrainingSteps(rank, device, training), Towers(exact=training.exact).to(device)
    inner = torch.optim.AdamW(module.named_parameters(), lr=1e-3)
    optimizer = make(inner, training.method, **training.options)
    # All ranks have the same weights after an exchange alone.
    steps.run(module, optimizer, list(module.parameters()), steps=max(STEPS, 2 * training.options.get("every", 1)))
    finish = getattr(optimizer, "finish", None)
    if finish is not None:
        finish()
    return steps.trained(module)


SWITCHING = Training("auto, until it has switched", "ddp", "auto", exact=False, ranks=(2,))


def until_switched(rank: int, device: str) -> Trained:
    """Train with auto over a slow link until it has switched, and some steps more.

    Raises:
        RuntimeError: auto did not switch in time.
    """
    steps, module, model = _wide(rank, device)
    state = compress_ddp(model, "auto", quiet=True)
    try:
        optimizer = _optimizer(module.parameters(), SWITCHING)
        while not state.decisions()["decisions"] and len(steps.losses) < DECIDES:
            steps.run(model, optimizer, list(module.parameters()), steps=1)
        decided = state.decisions()
        if not decided["decisions"]:
            raise RuntimeError(f"auto did not switch in {DECIDES} steps: {decided['phase']}")
        steps.run(model, optimizer, list(module.parameters()), steps=WATCHED)
        chosen = sorted({str(each["choice"]) for each in decided["buckets"]})
        return steps.trained(module, switched=decided["decisions"][0]["step"], chosen=chosen)
    finally:
        state.close()


def without_compression(rank: int, device: str, count: int) -> Trained:
    """Make the steps of ``until_switched`` by DDP alone."""
    steps, module, model = _wide(rank, device)
    steps.run(model, _optimizer(module.parameters(), SWITCHING), list(module.parameters()), steps=count)
    return steps.trained(module)


def _wide(rank: int, device: str) -> tuple[_TrainingSteps, Towers, DistributedDataParallel]:
    """A model that a slow link takes a while for."""
    module = Towers(exact=False, width=16).to(device)
    model = DistributedDataParallel(module, bucket_cap_mb=0.2)
    return _TrainingSteps(rank, device, SWITCHING), module, model


_KINDS: dict[str, Callable[[int, str, Training], Trained]] = {
    "ddp": _ddp,
    "fsdp": _fsdp,
    "group": _group,
    "local": _rounds,
    "step": _step,
}
