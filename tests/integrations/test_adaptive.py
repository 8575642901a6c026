"""A method that an optimizer that divides by the size of recent gradients suffers from: one warning of each kind."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as torch_optimizer

import gradwire
from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.engine.adaptive import is_adaptive, trouble_of
from gradwire.errors import ConfigError
from gradwire.frontends import optimizer_watch
from gradwire.frontends.adapters._arrays import ArrayState, Spec
from gradwire.memory.base import default_memory
from gradwire.testing.processes import run_ranks
from tests.heard import without_name
from tests.once import once

KEPT = {
    "topk": {"ratio": 0.1},
    "twobit": {"threshold": 0.1},
    "powersgd": {},
    "efsignsgd": {},
    "dgc": {},
    "variance": {},
    "ef21": {},
}
HARMLESS = {"none": {}, "bf16": {}, "fp8": {}, "qsgd": {"bits": 4}, "eden": {"bits": 2}, "natural": {}, "loco": {}}

WRONG = {"signsgd": "votes", "signum": "votes", "terngrad": "biased", "inceptionn": "biased"}
"""Methods that are wrong on average and keep nothing back, each with its kind."""

NOISY = {"qsgd": {"bits": 2}, "eden": {"bits": 1}, "terngrad": {"clip": 0.0}, "randomk": {"scaled": True, "ratio": 0.5}}


@contextmanager
def heard() -> Iterator[list[str]]:
    """The logger's messages about optimizers in the meantime."""
    said: list[str] = []

    class Ears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "docs/adaptive.md" in record.getMessage():
                said.append(without_name(record.getMessage()))

    log, ears = logging.getLogger("gradwire"), Ears()
    log.addHandler(ears)
    try:
        yield said
    finally:
        log.removeHandler(ears)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 32)).sum().backward()
    optimizer.step()


def ddp(method: str, make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, **options: Any) -> list[str]:
    """The messages until two steps were made."""
    model = DistributedDataParallel(net())
    with heard() as said:
        state = gradwire.compress_ddp(model, method, min_numel=16, **options)
        optimizer = make(model.parameters(), lr=1e-3)
        assert said == []
        step(model, optimizer)
        step(model, optimizer)
    state.close()
    return said


class Foreign(torch.optim.Optimizer):
    """An Adam that is not torch's class."""

    def __init__(self, params: Any, lr: float, second: str = "exp_avg_sq") -> None:
        super().__init__(params, {"lr": lr})
        self.second = second

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.state[param].setdefault(self.second, torch.zeros_like(param)).add_(param.grad.square())


def muon(params: Any, lr: float) -> torch.optim.Optimizer:
    """Muon, which takes matrices only."""
    return torch.optim.Muon([param for param in params if param.dim() == 2], lr=lr)


def known_at_once(method: str) -> list[list[str]]:
    """Said at set-up, without a step: by compress_ddp that is told, and by compress_optimizer, which knows."""
    found = []
    with heard() as said:
        model = DistributedDataParallel(net())
        optimizer = torch.optim.Adam(model.parameters())
        gradwire.compress_ddp(model, method, min_numel=16, optimizer=optimizer, **KEPT[method]).close()
    found.append(said)
    with heard() as said:
        plain = net()
        state = gradwire.compress_optimizer(
            torch.optim.RMSprop(plain.parameters()), plain, method, min_numel=16, **KEPT[method]
        )
        state.close()
    return [*found, said]


def noisy(method: str) -> list[list[str]]:
    """Said of a code that is right on average, and where learning rates follow its noise."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters())
    with heard() as said:
        state = gradwire.compress_ddp(model, method, min_numel=16, variance_correction=optimizer, **NOISY[method])
        step(model, optimizer)
    state.close()
    return [ddp(method, **NOISY[method]), said]


def changed() -> list[list[str]]:
    """A method that keeps nothing, another one later, and a third."""
    model = DistributedDataParallel(net())
    state = gradwire.compress_ddp(model, "bf16", min_numel=16)
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    for method, options in (("bf16", {}), ("topk", {"ratio": 0.1}), ("topk", {"ratio": 0.2})):
        with heard() as said:
            state.change(method, **options)
            step(model, optimizer)
        found.append(said)
    state.close()
    return found


def noise_then_harm() -> list[list[str]]:
    """A code that is only noisy, then one that keeps much back, then noise again."""
    model = DistributedDataParallel(net())
    state = gradwire.compress_ddp(model, "qsgd", bits=2, min_numel=16)
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    for method, options in (("qsgd", {"bits": 2}), ("topk", {"ratio": 0.1}), ("qsgd", {"bits": 2})):
        with heard() as said:
            state.change(method, drop=True, **options)
            for _ in range(2):
                step(model, optimizer)
        found.append(said)
    state.close()
    return found


def noise_and_harm() -> list[str]:
    """Two optimizers: the first gets what is only noisy, and the second, which steps later, what was kept back."""
    module = net()
    model = DistributedDataParallel(module)
    overrides = {"0.*": gradwire.compressor("qsgd:bits=2")}
    state = gradwire.compress_ddp(model, "topk", min_numel=64, overrides=overrides)
    optimizers = [torch.optim.AdamW(module[0].parameters()), torch.optim.RMSprop(module[1].parameters())]
    with heard() as said:
        for optimizer in optimizers:
            step(model, optimizer)
    state.close()
    return said


def sharded_flat() -> dict[str, list[str]]:
    """The messages under FSDP1."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    found = {}
    for name, options in {"qsgd": {"bits": 3, "memory": "residual"}, "eden": {"bits": 1}}.items():
        model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
        optimizer = torch.optim.AdamW(model.parameters())
        with heard() as said:
            state = gradwire.compress_fsdp1(model, name, min_numel=16, **options)
            assert said == []
            step(model, optimizer)
        state.close()
        found[name] = said
    return found


def wrapped() -> list[str]:
    """The messages where each rank has the optimizer of a part of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ddp("topk", lambda params, lr: ZeroRedundancyOptimizer(params, torch.optim.AdamW, lr=lr))


class Compiled(torch.optim.AdamW):
    """An AdamW whose step is compiled from the first call on."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.step = torch.compile(self.step, backend="eager")


def of_another_framework() -> list[list[str]]:
    """The messages for arrays whose optimizer is known by its name."""
    found = []
    for method, options in (("eden", {"bits": 1}), ("topk", {})):
        with heard() as said:
            specs = {"weight": Spec((32, 32), "float32")}
            ArrayState(specs, method, {"min_numel": 16, **options}, adaptive="Adam").close()
        found.append(said)
    return found


def sharded(rank: int) -> dict[str, list[str]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    found = {}
    kept: dict[str, Any] = {"bits": 3, "memory": "residual"}
    cases = {"told": kept, "found": kept, "noisy": {"bits": 3}, "corrected": {"bits": 3}, "safe": {"bits": 4}}
    for name, options in cases.items():
        model = net()
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.AdamW(model.parameters())
        with heard() as said:
            more = {"told": {"optimizer": optimizer}, "corrected": {"variance_correction": optimizer}}.get(name, {})
            gradwire.compress_fsdp(model, "qsgd", min_numel=16, **options, **more)
            if name != "told":
                assert said == []
                step(model, optimizer)
        found[name] = said
    return found


def left_behind() -> tuple[int, int]:
    """Watches that wait for an optimizer, and hooks on all optimizers, when two states and their models are gone."""
    hooks = len(torch_optimizer._global_optimizer_post_hooks)
    gc.collect()  # What the cases before left.
    for _ in range(2):
        model = DistributedDataParallel(net())
        state = gradwire.compress_ddp(model, "topk")
        assert sum(isinstance(each, optimizer_watch.AdaptiveWatch) for each in optimizer_watch._WAITING) == 1
        state.close()
        del state, model
        gc.collect()
    return len(optimizer_watch._WAITING), len(torch_optimizer._global_optimizer_post_hooks) - hooks


def after_close() -> list[bool]:
    """A watch waits for the optimizer before its state is closed, and after the next step of any optimizer."""
    model = DistributedDataParallel(net())
    state = gradwire.compress_ddp(model, "topk")
    found = [state.adaptive in optimizer_watch._WAITING]
    state.close()
    step(module := net(), torch.optim.SGD(module.parameters(), 0.1))
    return [*found, state.adaptive in optimizer_watch._WAITING]


def side_by_side() -> int:
    """Two models, each with its state and its optimizer, whose steps are the first ones: how much is said."""
    pairs = []
    with heard() as said:
        for _ in range(2):
            model = DistributedDataParallel(net())
            state = gradwire.compress_ddp(model, "topk", min_numel=16)
            pairs.append((model, state, torch.optim.Adam(model.parameters())))
        for model, _, optimizer in pairs:
            step(model, optimizer)
    for _, state, _ in pairs:
        state.close()
    return len(said)


def ways(kind: str) -> int:
    """The number of messages where several optimizers, states or methods are at work."""
    module = net()
    model = DistributedDataParallel(module)
    first, second = (list(layer.parameters()) for layer in module)
    biases, weights = [layer.bias for layer in module], [layer.weight for layer in module]
    options: dict[str, Any] = {"min_numel": 64}
    with heard() as said:
        if kind == "closed":
            gone = gradwire.compress_ddp(model, "topk", **options)
            gone.close()
            model = DistributedDataParallel(module)
        if kind == "override":
            options["overrides"] = {"*": gradwire.compressor("bf16")}
        if kind == "schedule":
            options |= {"memory": "residual", "bits": 8, "schedule": {"bits": lambda now: 8 if now < 100 else 3}}
        method = {"closed": "bf16", "schedule": "qsgd"}.get(kind, "topk")
        state = gradwire.compress_ddp(model, method, **options)
        optimizers = {
            "two": [torch.optim.SGD(first, 0.1), torch.optim.AdamW(second)],
            "one after the other": [torch.optim.SGD(first + second, 0.1), torch.optim.AdamW(first + second)],
            "biases": [torch.optim.AdamW(biases), torch.optim.SGD(weights, 0.1)],
        }.get(kind, [torch.optim.AdamW(model.parameters())])
        for _ in range(2):
            for optimizer in optimizers:
                step(model, optimizer)
    state.close()
    return len(said)


WAYS = {"two": 1, "one after the other": 1, "biases": 0, "closed": 0, "override": 0, "schedule": 1}


class Stranger(torch.optim.SGD):
    """An optimizer without groups."""

    def step(self, closure: None = None) -> str:
        return "stepped"


def without_groups() -> str:
    """A stranger's step, while a state waits for its own optimizer."""
    model = DistributedDataParallel(net())
    state = gradwire.compress_ddp(model, "topk", min_numel=64)
    stranger = Stranger(net().parameters(), 0.1)
    stranger.param_groups = None
    said = stranger.step()
    state.close()
    return said


def refused(optimizer: Any) -> str:
    model = DistributedDataParallel(net())
    with pytest.raises(ConfigError) as raised:
        gradwire.compress_ddp(model, "topk", optimizer=optimizer)
    return str(raised.value)


def all_of_them(rank: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    return {
        "kept": {method: ddp(method, **options) for method, options in KEPT.items()},
        "harmless": {method: ddp(method, **options) for method, options in HARMLESS.items()},
        "wrong": {method: [ddp(method), ddp(method, torch.optim.SGD)] for method in WRONG},
        "sgd": ddp("topk", torch.optim.SGD),
        "noisy": {method: noisy(method) for method in NOISY},
        "noisy sgd": ddp("qsgd", torch.optim.SGD, bits=2),
        "foreign": ddp("topk", Foreign),
        "muon": [ddp("topk", muon), ddp("qsgd", muon, bits=2)] if hasattr(torch.optim, "Muon") else None,
        "forced": ddp("topk", force=True),
        "override": ddp("bf16", overrides={"0.*": gradwire.compressor("topk")}),
        "at once": known_at_once("topk"),
        "changed": changed(),
        "noise then harm": noise_then_harm(),
        "noise and harm": noise_and_harm(),
        "flat": sharded_flat(),
        "wrapped": wrapped(),
        "arrays": of_another_framework(),
        "sharded": sharded(rank),
        "left behind": left_behind(),
        "after close": after_close(),
        "side by side": side_by_side(),
        "ways": {kind: ways(kind) for kind in WAYS},
        "without groups": without_groups(),
        "refused": [refused("adam"), refused(torch.optim.Adam(net().parameters()))],
        "compiled": ddp("topk", Compiled),  # The last one: torch keeps what it compiled.
    }


@once
def told() -> list[dict[str, Any]]:
    return run_ranks(2, all_of_them)


@pytest.mark.parametrize("method", KEPT)
def test_what_keeps_something_back_is_warned_of_once_by_rank_0(method: str) -> None:
    first, second = (each["kept"][method] for each in told())
    assert second == []
    (line,) = first
    assert line.startswith(f"{method!r} with memory '")
    assert " and AdamW divides " in line
    assert "Use 'qsgd' with bits=4, or 'eden' with bits=2; for fewer bytes exchange steps" in line
    assert "gradwire.CompressedStep(optimizer)" in line


@pytest.mark.parametrize("method", HARMLESS)
def test_what_keeps_nothing_back_and_adds_little_is_not(method: str) -> None:
    assert told()[0]["harmless"][method] == []


@pytest.mark.parametrize("method", WRONG)
def test_what_is_wrong_on_average_is_warned_of_except_under_sgd(method: str) -> None:
    (line,), sgd = told()[0]["wrong"][method]
    votes = f"{method!r} hands out votes, all of one size, and AdamW divides by the size of what arrives"
    biased = f"What {method!r} sends is wrong on average, and AdamW divides gradients by the size of recent ones"
    assert line.startswith({"votes": votes, "biased": biased}[WRONG[method]])
    assert "'qsgd' with bits=4, or 'eden' with bits=2" in line
    assert sgd == []
    assert told()[1]["wrong"][method] == [[], []]


def test_each_registered_method_is_judged() -> None:
    kinds: dict[str | None, set[str]] = {}
    for name in registry.names("compressors"):
        code = registry.build("compressors", name)
        found = trouble_of(code, registry.build("memory", default_memory(code)))
        kinds.setdefault(found and found.kind, set()).add(name)
        assert (found is None) is capabilities.fine(code), name
    assert kinds.pop("votes") | kinds.pop("biased") == set(WRONG)
    assert kinds.pop("noisy") == {"adaptive_sparse", "atomo", "eden", "entropy", "global_qsgd"}
    assert kinds.keys() == {None, "late"}


@pytest.mark.parametrize("name", ["exp_avg_sq", "exp_avg_sq_row", "exp_inf", "square_avg", "state2"])
def test_second_moments_are_known_by_their_names(name: str) -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer, other = Foreign([weight], 1.0, name), Foreign([weight], 1.0, "momentum_buffer")
    for each in (optimizer, other):
        each.step()
    assert is_adaptive(optimizer)
    assert not is_adaptive(other)


def test_harm_is_warned_of_after_noise() -> None:
    first, second, third = told()[0]["noise then harm"]
    assert [len(said) for said in (first, second, third)] == [1, 1, 0]
    assert first[0].startswith("'qsgd' adds noise")
    assert second[0].startswith("'topk' with memory 'residual' keeps back")


def test_harm_to_a_second_optimizer_is_warned_of_after_noise_to_the_first() -> None:
    first, second = told()[0]["noise and harm"]
    assert first.startswith("'qsgd' adds noise to gradients, and AdamW divides")
    assert second.startswith("'topk' with memory 'residual' keeps back what it does not send, and RMSprop divides")
    assert told()[1]["noise and harm"] == []


def test_models_under_fsdp1_too() -> None:
    found = told()[0]["flat"]
    (late,), (noise,) = found["qsgd"], found["eden"]
    assert late.startswith("'qsgd' with memory 'residual' keeps back")
    assert noise.startswith("'eden' adds noise to gradients, and AdamW divides")


def test_an_optimizer_inside_a_wrapper_is_found() -> None:
    (line,) = told()[0]["wrapped"]
    assert " and AdamW divides " in line


def test_a_step_that_is_compiled_from_the_first_one_on_is_not_seen() -> None:
    assert told()[0]["compiled"] == []


def test_what_to_do_in_another_framework_is_said_in_its_words() -> None:
    (noise,), (late,) = told()[0]["arrays"]
    assert "Give variance_correction=True to DistributedOptimizer" in noise
    assert "'eden' with variance_correction=True" in late
    assert not any("compress_ddp" in line or "CompressedStep" in line for line in (noise, late))


def test_other_optimizers_and_those_who_know_are_left_in_peace() -> None:
    assert told()[0]["sgd"] == told()[0]["forced"] == []


def test_an_adam_of_another_package_is_known_by_its_state() -> None:
    (line,) = told()[0]["foreign"]
    assert " and Foreign divides " in line
    assert not is_adaptive(Foreign(net().parameters(), lr=1.0))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_suffers_from_what_comes_late_and_not_from_noise() -> None:
    (line,), noise = told()[0]["muon"]
    assert line.startswith(
        "'topk' with memory 'residual' keeps back what it does not send, and a step of Muon has one size"
    )
    assert noise == []


def test_an_override_counts() -> None:
    (line,) = told()[0]["override"]
    assert line.startswith("'topk' with memory 'residual'")


def test_an_optimizer_that_is_known_is_judged_at_set_up() -> None:
    first, second = told()[0]["at once"]
    assert len(first) == len(second) == 1
    assert " and Adam divides " in first[0]
    assert " and RMSprop divides " in second[0]


def test_a_method_that_is_changed_to_is_judged_once() -> None:
    assert [len(said) for said in told()[0]["changed"]] == [0, 1, 0]


def test_sharded_models_too() -> None:
    found = told()[0]["sharded"]
    lengths = {name: len(said) for name, said in found.items()}
    assert lengths == {"told": 1, "found": 1, "noisy": 1, "corrected": 0, "safe": 0}
    assert found["found"][0].startswith("'qsgd' with memory 'residual' keeps back")
    assert found["noisy"][0].startswith("'qsgd' adds noise to gradients, and AdamW divides")


@pytest.mark.parametrize("method", NOISY)
def test_noise_is_warned_of_unless_it_is_corrected(method: str) -> None:
    (plain,), corrected = told()[0]["noisy"][method]
    assert plain.startswith(f"{method!r} adds noise to gradients, and AdamW divides by their root mean square")
    assert "variance_correction=optimizer" in plain
    assert corrected == []
    assert told()[1]["noisy"][method] == [[], []]


def test_noise_is_nothing_to_other_optimizers() -> None:
    assert told()[0]["noisy sgd"] == []


def test_nothing_watches_when_the_state_is_gone() -> None:
    # The process has heard of optimizers' steps before, and has one hook for all states.
    assert [each["left behind"] for each in told()] == [(0, 0), (0, 0)]


def test_nothing_watches_for_a_state_that_is_closed() -> None:
    assert [each["after close"] for each in told()] == [[True, False]] * 2


def test_each_state_looks_for_its_own_optimizer() -> None:
    assert [each["side by side"] for each in told()] == [2, 0]


@pytest.mark.parametrize("kind", WAYS)
def test_only_what_is_sent_late_to_an_adaptive_optimizer_counts(kind: str) -> None:
    assert told()[0]["ways"][kind] == WAYS[kind]


def test_an_optimizer_of_a_stranger_steps_as_before() -> None:
    assert told()[0]["without groups"] == "stepped"


def test_what_is_no_optimizer_of_the_model_is_refused() -> None:
    no_optimizer, others = told()[0]["refused"]
    assert no_optimizer == "optimizer must be a torch.optim.Optimizer or None, got 'adam'"
    assert others == "optimizer must be the one that trains this model's parameters, got one of others"
