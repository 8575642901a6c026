"""A user's own script is watched as it is; what cannot be watched says why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gradwire.errors import ConfigError
from gradwire_lab.advise._probe import described, optimizers_of
from gradwire_lab.advise.run_optimizer import RunOptimizer
from gradwire_lab.advise.script import _complaint, profile_script

SCRIPT = Path(__file__).with_name("trained.py")


@pytest.mark.timeout(400)
def test_a_scripts_buckets_and_times_are_found() -> None:
    profile, optimizer = profile_script(SCRIPT, ["1000"], steps=3, deadline=300)
    assert optimizer == RunOptimizer("SGD", False, "the script's own")
    assert profile.busy
    (bucket,) = profile.buckets
    # Out of order, as DDP sorts a bucket: by when gradients came.
    assert dict(bucket.params) == {"0.weight": (512, 64), "0.bias": (512,), "2.weight": (10, 512), "2.bias": (10,)}
    assert 0 < bucket.ready <= profile.seconds


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("unwrapped", "must wrap its model into DistributedDataParallel: it built none"),
        ("broken", "failed with exit code 1: ValueError: the disk is full"),
        ("sharded", r"shards its model, .*gradwire\.compress_fsdp\(model\) measures and decides"),
    ],
)
def test_what_cannot_be_watched_says_why(argument: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"--script .*trained.py {said}"):
        profile_script(SCRIPT, [argument], steps=3, deadline=300)


def test_a_deadline_ends_the_script() -> None:
    with pytest.raises(ConfigError, match=r"built no DistributedDataParallel within the 0.01 s of --deadline"):
        profile_script(SCRIPT, ["1000"], deadline=0.01)
    assert _complaint(True, None, "", 3, 60).startswith("did not make 6 forward passes")
    assert _complaint(True, 0, "", 3, 60).startswith("ended before it made 6 forward passes in training mode")


def test_arguments_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--script must be a file, got .*nothing\.py"):
        profile_script(tmp_path / "nothing.py")
    with pytest.raises(ConfigError, match="steps must be an integer >= 1, got 0"):
        profile_script(SCRIPT, steps=0)
    with pytest.raises(ConfigError, match="--deadline must be seconds > 0, got 0"):
        profile_script(SCRIPT, deadline=0)


def test_all_optimizers_of_a_model_count() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    weight, bias = model.parameters()
    elsewhere = torch.optim.SGD(other.parameters(), 0.1)
    assert described(optimizers_of(model)) is None
    some = [torch.optim.SGD([weight], 0.1)]
    assert described(optimizers_of(model)) == {"name": "SGD", "adaptive": False}
    some.append(torch.optim.AdamW([bias]))
    assert described(optimizers_of(model)) == {"name": "AdamW and SGD", "adaptive": True}
    some[1:] = [torch.optim.Rprop([bias])]
    assert described(optimizers_of(model)) == {"name": "Rprop and SGD", "adaptive": None}
    assert described([elsewhere]) == {"name": "SGD", "adaptive": False}


class Adam8bit(torch.optim.Optimizer):
    """An optimizer with the state of bitsandbytes."""

    def __init__(self, params: list[torch.Tensor]) -> None:
        super().__init__(params, {})

    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            self.state[group["params"][0]] = {"step": 1, "state1": torch.zeros(1), "state2": torch.zeros(1)}


def test_an_optimizer_of_another_package_shows_itself_after_a_step() -> None:
    optimizer = Adam8bit([torch.zeros(1, requires_grad=True)])
    assert described([optimizer]) == {"name": "Adam8bit", "adaptive": None}
    optimizer.step()
    assert described([optimizer]) == {"name": "Adam8bit", "adaptive": True}
