"""Functions of FSDP that note how long a backward pass waits for weights: they leave nothing behind."""

from __future__ import annotations

import pytest
import torch

from gradwire.integrations._stalls import Stalls


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
    stalls = Stalls(torch.device("cpu"), lambda: True)
    stalls.watch(group)
    # Outside a backward pass nothing is noted.
    assert group.unshard() == ("torch" if earlier == "nothing" else "a library")
    assert not stalls.taken()
    replaced = group.wait_for_unshard = lambda: "later"  # type: ignore[method-assign]
    stalls.leave()
    assert group.unshard() == ("torch" if earlier == "nothing" else "a library")
    assert group.wait_for_unshard is replaced
    assert ("unshard" in vars(group)) == (earlier != "nothing")
