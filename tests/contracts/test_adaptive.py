"""Adam with what a method sends: who says that it is fine ends where no compression does, others do not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.testing.adaptive import BOUND, check_fine, errors
from tests.once import once

FINE: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {})
        for name in registry.names("compressors")
        if capabilities.fine(registry.build("compressors", name))
    },
    **{
        " ".join([name, *(f"{key}={value}" for key, value in options.items())]): (name, options)
        for name, options in (
            ("fp8", {"memory": "residual"}),
            ("natural", {"memory": "residual"}),
            ("natural", {"rounding": "nearest"}),
            ("eden", {"bits": 2}),
            ("eden", {"bits": 2, "memory": "residual"}),
            ("eden", {"bits": 4}),
            ("qsgd", {"bits": 4, "memory": "residual"}),
            ("qsgd", {"bits": 8}),
            ("nuqsgd", {"bits": 4, "memory": "residual"}),
            ("lpc_svrg", {"bits": 4, "memory": "residual"}),
            ("thc", {"levels": 7}),
            ("sketchml", {"buckets": 16}),
            ("entropy", {"inner": registry.build("compressors", "qsgd", {"bits": 4})}),
        )
    },
}
"""Methods that are fine at their defaults, and with parameters or memories of their own."""

HARMED: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("topk", "onebit", "ef21", "dgc")},
    "nuqsgd bits=2": ("nuqsgd", {"bits": 2}),
    "thc levels=1": ("thc", {"levels": 1}),
}
"""Methods that keep back much at their defaults, and coarse forms of methods that are fine at theirs."""


@once
def found() -> dict[str, float]:
    named = {**FINE, **HARMED}
    return dict(zip(named, errors(list(named.values())), strict=True))


def test_the_list_has_only_what_says_that_it_is_fine() -> None:
    made = [
        (name, {key: value for key, value in options.items() if key != "memory"}) for name, options in FINE.values()
    ]
    assert all(capabilities.fine(registry.build("compressors", name, options)) for name, options in made)
    assert not any(capabilities.fine(registry.build("compressors", name, options)) for name, options in HARMED.values())


@pytest.mark.parametrize("name", FINE)
def test_who_says_that_it_is_fine_ends_where_no_compression_does(name: str) -> None:
    assert found()[name] < BOUND * found()["none"]


@pytest.mark.parametrize("name", HARMED)
def test_who_is_not_ends_worse(name: str) -> None:
    assert math.isfinite(found()[name])
    assert found()[name] > BOUND * found()["none"]


def test_no_compression_learns() -> None:
    assert found()["none"] < 0.05


def test_a_method_of_ones_own_is_checked() -> None:
    check_fine(registry.build("compressors", "bf16"))
    with pytest.raises(AssertionError, match=r"TopK\(.*is not fine at the defaults: under Adam the error is"):
        check_fine(registry.build("compressors", "topk"))
