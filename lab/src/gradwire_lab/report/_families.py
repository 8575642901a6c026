"""Families of methods: they decide the colour of a row, and which rows are baselines."""

from __future__ import annotations

from functools import cache

from gradwire import registry
from gradwire_lab.experiments.torchhooks import PREFIX

__all__ = ["BASELINE", "FAMILIES", "PLAIN", "family_of", "named"]

BASELINE = "no compression"

PLAIN = ("ddp", "none")
"""The labels of an uncompressed exchange: DDP alone before our own path without a compressor."""

FAMILIES = (
    BASELINE,
    "cast",
    "quantisation",
    "sparsification",
    "low rank",
    "hybrid",
    "wrapper",
    "torch's hook",
    "other",
)
"""The families of ``Compressor.family``, and what is none; in the order of legends."""


def named(method: str, *, ours: bool) -> str:
    """The displayed name of a method; torch's own hooks are marked, because our methods may have the same name.

    >>> named("powersgd", ours=True), named("torch_powersgd", ours=False), named("ddp", ours=False)
    ('powersgd', "torch's powersgd", 'ddp')
    """
    plain = method.removeprefix(PREFIX)
    return method if ours else plain if plain in PLAIN else f"torch's {plain}"


@cache
def family_of(method: str, compressor: str | None) -> str:
    """The family of a method.

    Args:
        method: label of the method.
        compressor: registered name of its compressor; None: torch's own. One that is not registered is "other".

    >>> family_of("topk:ratio=0.1", "topk"), family_of("fp16", None), family_of("ddp", None)
    ('sparsification', "torch's hook", 'no compression')
    """
    if method in PLAIN or (compressor is None and method.removeprefix(PREFIX) in PLAIN):
        return BASELINE
    if compressor is None:
        return "torch's hook"
    if compressor not in registry.names("compressors"):
        return "other"
    family: str = registry.find("compressors", compressor).family
    return family if family in FAMILIES else "other"
