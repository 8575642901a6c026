"""Setting up: which parameters are compressed, what is refused, and that all ranks hear of it."""

from __future__ import annotations

import io
import itertools
import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.compressors.simple import SimpleCompressor
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.transforms.thc import THC
from gradwire.engine.strategies.two_phase import TwoPhase
from gradwire.errors import ConfigError
from gradwire.frontends.ddp import GradwireState, compress_ddp
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.memory.residual import Residual
from gradwire.testing.processes import run_ranks
from tests.compressors.methods import OwnMemory
from tests.heard import heard
from tests.integrations.jobs import answers, batch, model_of


def _differently(rank: int, kind: str) -> str:
    model = DistributedDataParallel(model_of())
    options: dict[str, Any] = {"threshold": 1e-3}
    if kind == "threshold" and rank == 1:
        options["threshold"] = 2e-3
    if kind == "bad value" and rank == 1:
        options["threshold"] = -1.0
    if kind == "policy" and rank == 1:
        options["min_numel"] = 7
    if kind == "not wrapped" and rank == 1:
        model = model.module
    if kind == "broken" and rank == 1:
        return told(lambda: compress_ddp(model, Broken()))
    method = "topk" if kind == "method" and rank == 1 else "twobit"
    return told(lambda: compress_ddp(model, method, **({} if kind == "method" else options)))


class Broken(SimpleCompressor):
    def compress(self, tensor, name):
        return None

    def decompress(self, tensors, ctx):
        return tensors[0]


def told(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("threshold", r"compressor\.threshold is 0\.001 on ranks 0, 2; 0\.002 on rank 1"),
        ("method", r"compressor\.name is 'twobit' on ranks 0, 2; 'topk' on rank 1"),
        ("policy", r"policy\.min_numel"),
        ("not wrapped", r"rank 1 was configured wrongly: .*model must be a torch\.nn\.parallel"),
        ("broken", r"rank 1 was configured wrongly: .*Broken.compress must return"),
        ("bad value", r"rank 1 was configured wrongly: .*threshold must be .*got -1\.0"),
    ],
)
def test_ranks_that_differ_all_raise_the_same_error(kind: str, named: str) -> None:
    errors = run_ranks(3, _differently, kind)
    assert len(set(errors)) == 1
    assert re.search(rf"^GroupError: .*{named}", errors[0])


def _numpy_on_one_rank(rank: int) -> dict[str, Any]:
    """The same numbers from another library are the same configuration, in the state and in its text."""
    number, whole = (np.float64, np.int64) if rank else (float, int)
    model = DistributedDataParallel(model_of())
    options = {"min_numel": whole(7), "seed": whole(3), "start_after": whole(0), "timeout": number(60.0)}
    state = compress_ddp(model, "qsgd", bits=whole(4), block=whole(64), **options)
    nn.functional.cross_entropy(model(batch(0, rank)[0]), batch(0, rank)[1]).backward()
    return state.exchange.methods.compressor.to_config()


def test_numbers_of_numpy_are_numbers() -> None:
    one, other = run_ranks(2, _numpy_on_one_rank)
    assert one == other
    assert {type(value) for value in other.values()} == {str, int, bool, type(None)}


class Long(nn.Module):
    """One long vector, and a matrix."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.vector, self.matrix = nn.Parameter(torch.zeros(length)), nn.Parameter(torch.zeros(64, 64))


def _dense_share(rank: int, method: str, length: int) -> str:
    heard = io.StringIO()
    logging.getLogger("gradwire").addHandler(logging.StreamHandler(heard))
    GradwireState(Long(length), method)
    return heard.getvalue()


@pytest.mark.parametrize(
    ("method", "length", "warned"),
    [("powersgd", 2**14, True), ("powersgd", 900, False), ("powersgd", 1030, True), ("qsgd", 2**14, False)],
)
def test_a_tensor_that_does_not_shrink_is_named_where_it_matters(method: str, length: int, warned: bool) -> None:
    told, other = run_ranks(2, _dense_share, method, length)
    named = f"cannot shrink vector: {length} of {length + 4096} elements travel dense"
    assert other == ""
    assert (named in told) == warned
    assert ("overrides={'vector': 'qsgd'}, or reshape them into matrices" in told) == warned


def _policies(rank: int) -> dict[str, Any]:
    model = DistributedDataParallel(model_of())
    ratios = {}
    for name, options in {
        "all": {},
        "excluded": {"exclude": ["2.*"]},
        "small": {"min_numel": 5000},
        "override": {"overrides": {"2.weight": TwoBit(threshold=0.25)}},
        "named": {"overrides": {"*": "none"}},
    }.items():
        state = GradwireState(model, "twobit", threshold=1e-3, **options)
        flat = torch.zeros(sum(p.numel() for p in model.parameters()))
        params = [(n, tuple(p.shape)) for n, p in model.module.named_parameters()]
        flat += 0.3
        state.exchange.begin_step()
        state.exchange.run(flat, params)
        lo = sum(p.numel() for n, p in model.module.named_parameters() if n < "2.weight")
        ratios[name] = (state.metrics()["ratio"], float(flat[lo]))
        state.close()
    return ratios


def test_policies_choose_what_is_compressed() -> None:
    seen = run_ranks(2, _policies)[0]
    assert seen["all"][0] > seen["excluded"][0] > 1
    assert seen["all"][0] > seen["small"][0] > 1
    assert seen["override"][1] == 0.25
    assert seen["all"][1] == pytest.approx(1e-3)
    assert seen["named"][0] == 1.0


def _warm(rank: int) -> list[float]:
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.02)
    state = compress_ddp(
        model, "topk", min_numel=0, start_after=2, schedule={"ratio": lambda step: 0.5 / 2 ** min(step, 9)}
    )
    sent = [0]
    for step in range(5):
        x, y = batch(step, rank)
        nn.functional.cross_entropy(model(x), y).backward()
        sent.append(state.metrics()["bytes_sent"])
    return [after - before for before, after in itertools.pairwise(sent)]


def test_warm_up_is_dense_and_a_schedule_moves_the_ratio() -> None:
    dense1, dense2, first, second, third = run_ranks(2, _warm)[0]
    assert dense1 == dense2 > first > second > third
    assert second / first == pytest.approx(0.5, rel=0.1)


def test_a_model_that_is_not_wrapped_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be a .*DistributedDataParallel, got Linear"):
        compress_ddp(nn.Linear(2, 2), "twobit")  # type: ignore[arg-type]


def _refused(rank: int) -> list[str]:
    answers = []
    for model, compressor, options in [
        (nn.Linear(4, 4), "twobitt", {}),
        (nn.Linear(4, 4), "twobit", {"treshold": 1}),
        (nn.Linear(4, 4), "topk", {"ratio": 1.5}),
        (nn.Linear(4, 4), "twobit", {"strategy": "allreduce"}),
        (nn.Linear(4, 4), "twobit", {"memory": "none"}),
        (nn.Linear(4, 4), "topk", {"memory": "none"}),
        (nn.Linear(4, 4), "twobit", {"exclude": ["embed*"]}),
        (nn.Linear(4, 4), "twobit", {"strategy": "allgahter"}),
        (nn.Linear(4, 4), "twobit", {"schedule": {"ratio": float}}),
        (nn.Linear(4, 4), "twobit", {"timeout": -1}),
        (nn.Linear(4, 4), "twobit", {"timeout": 1e30}),
        (nn.Linear(4, 4), "twobit", {"memory": 3}),
        (nn.Linear(4, 4), "twobit", {"overrides": {1: "fp16"}}),
        (nn.Linear(4, 4), "twobit", {"exclude": 5}),
        (nn.Linear(4, 4), "twobit", {"force": "no"}),
        (nn.Linear(4, 4), "twobit", {"schedule": 3}),
        (nn.Linear(4, 4), TopK(0.1), {"ratio": 0.5}),
        (nn.Linear(4, 4), TopK(0.1), {"stategy": "allgather"}),
        (nn.Linear(4, 4), TopK, {}),
        (nn.Linear(4, 4), "topk", {"memory": Residual}),
        (nn.Linear(4, 4), "topk", {"strategy": TwoPhase}),
        (nn.Linear(4, 4), "topk", {"overrides": {"weight": TopK}}),
    ]:
        try:
            GradwireState(model, compressor, **options)
        except ConfigError as error:
            answers.append(str(error))
    return answers


def test_bad_input_is_named() -> None:
    answers = run_ranks(2, _refused)[0]
    expected = [
        "did you mean 'twobit'",
        "did you mean 'threshold'",
        r"TopK.ratio must be in \(0, 1\], got 1.5",
        "cannot be summed",
        "the residual is part of 'twobit'",
        "memory 'none' loses for good what TopK.* say force=True",
        r"'embed\*' matches no parameter",
        "did you mean 'allgather'",
        "no parameter 'ratio'",
        "timeout must be",
        "timeout must be",
        "memory must be",
        "overrides must be",
        "exclude must be",
        "force must be",
        "schedule must be",
        r"^ratio must be given to the constructor of TopK.*: TopK\(ratio=0\.5, \.\.\.\), got ratio=0\.5 among",
        r"unknown option 'stategy' beside TopK\(.*did you mean 'strategy'",
        r"compressor must be a name, a compressor or a recipe, got <class '.*TopK'>, a class: write TopK\(\.\.\.\)",
        r"memory must be .*: write Residual\(\.\.\.\)",
        r"strategy must be .*: write TwoPhase\(\.\.\.\)",
        r"overrides\['weight'\] must be .*: write TopK\(\.\.\.\)",
    ]
    assert len(answers) == len(expected)
    for answer, pattern in zip(answers, expected, strict=True):
        assert re.search(pattern, answer), (pattern, answer)


def _with_these_workers(rank: int) -> dict[str, str]:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = DistributedDataParallel(model_of())

    def ddp(method: str, **options: Any) -> Callable[[], object]:
        return lambda: compress_ddp(wrapped, method, **options)

    return answers(
        {
            "thc": ddp("thc", levels=86),
            "global_qsgd": ddp("global_qsgd", levels=43),
            "override": ddp("qsgd", overrides={"2.weight": THC(levels=86)}),
            "schedule": ddp("thc", schedule={"levels": lambda step: 15 if step < 100 else 86}),
            "loop": lambda: compress_optimizer(optimizer, model, "thc", levels=86),
            "dgc": ddp("powersgd", memory="dgc"),
            "momentum": ddp("thc", memory="momentum"),
            "variance": ddp("gradiveq", memory="variance"),
            "residual of two": ddp_own(wrapped),
            "fits": lambda: compress_optimizer(optimizer, model, "thc", levels=85),
        }
    )


def ddp_own(model: DistributedDataParallel) -> Callable[[], object]:
    return lambda: compress_ddp(model, OwnMemory(), memory="residual")


def test_workers_or_memories_that_a_method_cannot_serve_are_refused_at_setup() -> None:
    seen = run_ranks(3, _with_these_workers)
    assert seen[1] == seen[0] == seen[2]
    told = seen[0]
    sums = "with 3 workers, whose codes are summed in 8 bits, got"
    for case in ("thc", "override", "loop"):
        assert told[case].startswith(f"ConfigError: THC.levels must be at most 255 // 3 = 85 {sums} 86: use levels=85")
    assert f"GlobalQSGD.levels must be at most 127 // 3 = 42 {sums} 43: use levels=42" in told["global_qsgd"]
    assert "at step 100 it gave: THC.levels must be at most 255 // 3 = 85" in told["schedule"]
    for memory in ("dgc", "momentum", "variance"):
        assert told[memory].startswith(f"ConfigError: memory {memory!r} serves methods of one round")
        assert told[memory].endswith("use memory='residual'")
    assert "which is defined with memory 'none'" in told["residual of two"]
    assert told["fits"] == "nothing was raised"


def _followed(rank: int) -> dict[str, str]:
    """Only rank 1 follows a loss scale, or its learning rates."""

    def rates(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    scaler = torch.amp.GradScaler("cpu") if rank else None
    plain, other = model_of(), nn.Linear(2, 2)
    optimizer = rates(plain)

    def wrapped(**options: Any) -> object:
        return compress_ddp(DistributedDataParallel(model_of()), "topk", **options)

    def followed() -> object:
        model = DistributedDataParallel(model_of())
        return compress_ddp(model, "topk", lr_correction=rates(model) if rank else None)

    def mixed() -> object:
        model = DistributedDataParallel(model_of())
        return compress_ddp(model, "topk", lr_correction=rates(other if rank else model))

    def frozen() -> object:
        model = model_of()
        first = next(model.parameters()).requires_grad_(False)
        return compress_ddp(DistributedDataParallel(model), "topk", lr_correction=torch.optim.SGD([first], lr=0.1))

    return answers(
        {
            "ddp frozen": frozen,
            "ddp scaler": lambda: wrapped(scaler=scaler),
            "ddp rates": followed,
            "ddp other": mixed,
            "loop scaler": lambda: compress_optimizer(optimizer, plain, "topk", scaler=scaler),
            "loop rates": lambda: compress_optimizer(optimizer, plain, "topk", lr_correction=bool(rank)),
            "loop neither": lambda: compress_optimizer(optimizer, plain, "topk", lr_correction="yes" if rank else True),
        }
    )


def test_what_residuals_follow_must_be_the_same_on_all_ranks() -> None:
    results = run_ranks(2, _followed)
    assert results[0] == results[1]
    apart = "GroupError: ranks were configured differently: {} is False on rank 0; True on rank 1"
    told = results[0]
    assert told["ddp scaler"] == told["loop scaler"] == apart.format("scaler")
    assert told["ddp rates"] == told["loop rates"] == apart.format("lr_correction")
    assert (
        "rank 1 was configured wrongly: ConfigError: lr_correction must be the optimizer of this" in told["ddp other"]
    )
    assert "lr_correction must be the optimizer of this model's parameters, got one of others" in told["ddp frozen"]
    assert "rank 1 was configured wrongly: ConfigError: lr_correction must be True or False" in told["loop neither"]


def _groups(rank: int) -> dict[str, str]:
    half, same = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    model = DistributedDataParallel(model_of())
    told = answers({"half": lambda: compress_ddp(model, "topk", process_group=half if rank < 2 else None)})
    return told | answers({"same": lambda: compress_ddp(model, "topk", process_group=same)})


def test_only_the_ranks_of_ddp_average_its_gradients() -> None:
    for told in run_ranks(3, _groups):
        assert "process_group must be of the DDP model's own ranks [0, 1, 2], or left out" in told["half"]
        assert told["same"] == "nothing was raised"


def _other_method(rank: int) -> dict[str, list[str]]:
    said = heard(logging.WARNING)

    def trained(ratio: float) -> GradwireState:
        model = DistributedDataParallel(model_of())
        state = compress_ddp(model, "topk", ratio=ratio)
        x, y = batch(0, rank)
        nn.functional.cross_entropy(model(x), y).backward()
        return state

    saved = trained(0.05).state_dict()
    told = {}
    for case, ratio in (("same", 0.05), ("other", 0.1), ("old", 0.1)):
        state = trained(ratio)
        state.load_state_dict({key: value for key, value in saved.items() if case != "old" or key != "method"})
        told[case] = list(said)
        said.clear()
    return told


def test_a_state_of_another_method_is_loaded_with_a_word() -> None:
    first, second = run_ranks(2, _other_method)
    assert (first["same"], first["old"]) == ([], [])
    assert second == {"same": [], "other": [], "old": []}
    (line,) = first["other"]
    assert re.search(r'saved with .*"ratio": 0.05.*; this run goes on with .*"ratio": 0.1', line)
