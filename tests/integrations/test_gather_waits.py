"""Pauses of a backward pass for weights and for reductions: they are counted, and nothing is left behind."""

from __future__ import annotations

import time

import pytest
import torch

from gradwire.frontends._background import Background
from gradwire.frontends._gather_waits import GatherWaits


@pytest.mark.parametrize("earlier", ["nothing", "a library's"])
def test_functions_of_a_group_are_as_before_when_nobody_watches_it_any_more(earlier: str) -> None:
    class Group:
        def unshard(self) -> str:
            return "torch"

        def wait_for_unshard(self) -> str:
            return "torch"

    group = Group()
    if earlier != "nothing":
        group.unshard = lambda: "a library"  # type: ignore[method-assign]
    stalls = GatherWaits(torch.device("cpu"), lambda: True)
    stalls.watch(group)
    # Outside a backward pass nothing is noted.
    assert group.unshard() == ("torch" if earlier == "nothing" else "a library")
    assert not stalls.taken()
    replaced = group.wait_for_unshard = lambda: "later"  # type: ignore[method-assign]
    stalls.leave()
    assert group.unshard() == ("torch" if earlier == "nothing" else "a library")
    assert group.wait_for_unshard is replaced
    assert ("unshard" in vars(group)) == (earlier != "nothing")


def test_what_starts_reductions_counts_how_long_it_waits_for_them() -> None:
    background, held = Background(), list[float]()

    def reduce() -> torch.Tensor:
        time.sleep(0.3)
        return torch.empty(0)

    def start(_: torch.Tensor) -> None:
        for _ in range(3):
            background.start(reduce)
            held.append(background.held)

    found = torch.ones(1, requires_grad=True) * 2
    found.register_hook(start)
    found.backward()
    background.close()
    # Two may be under way: only the third is started after the first is done, and the pass ends after all of them.
    assert held[2] > held[1] + 0.04
    assert background.held > held[2] + 0.04


def test_pauses_of_a_pass_in_which_nothing_is_reduced_are_forgotten() -> None:
    class Group:
        def unshard(self) -> None:
            pass

        wait_for_unshard = unshard

    def back(times: int) -> None:
        found = torch.ones(1, requires_grad=True) * 2
        found.register_hook(lambda _: [group.unshard() for _ in range(times)] and None)
        found.backward()

    group, asked = Group(), [True]
    stalls = GatherWaits(torch.device("cpu"), lambda: asked[0])
    stalls.watch(group)
    back(3)
    back(2)
    assert len(stalls.taken()) == 2
    asked[0] = False
    back(2)
    assert not stalls.taken()
