"""Text form of a method, as on the command line and in a suite: ``NAME`` or ``NAME:PARAMETER=VALUE,...``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from gradwire import registry
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.none import Identity
from gradwire.frontends.setup import is_auto
from gradwire.registry import named_of
from gradwire_lab.experiments.recommended import BY_TASK, recommended
from gradwire_lab.experiments.torchhooks import PREFIX, check_hook
from gradwire_lab.experiments.training_method import Method

__all__ = ["method_of", "parse_method", "text_of"]


def parse_method(text: str) -> Compressor:
    """Read a registered compressor with parameters.

    Raises:
        ConfigError: no such compressor or parameter, or not of the form.

    Example:
        >>> parse_method("twobit:threshold=0.25").threshold
        0.25
    """
    compressor: Compressor = registry.build("compressors", text)
    return compressor


def method_of(text: str, task: str = "classification", *, own: bool = False) -> Method:
    """Make a method with the recommended settings of its name; given parameters override the compressor's own defaults.

    Args:
        text: text of the user; ``torch_`` before a name means a hook of torch's.
        task: name of the task that is trained.
        own: only with the compressor's and the library's own defaults.

    Raises:
        ConfigError: the text is no method, as for ``parse_method``.

    Example:
        >>> method_of("randomk").compressor.ratio, method_of("randomk:ratio=0.01").compressor.ratio
        (0.05, 0.01)
        >>> method_of("torch_powersgd:rank=4").hook
        {'name': 'powersgd', 'rank': 4}
    """
    if text.startswith(PREFIX):
        hook = named_of(text.removeprefix(PREFIX))
        check_hook(hook)
        return Method(text, Identity(), hook=hook)
    if is_auto(text):
        return Method(text, Identity(), auto=text)
    if own:
        return Method(text, parse_method(text))
    if text in BY_TASK.get(task, {}):
        return recommended(text, task)
    method = recommended(text.partition(":")[0], task)
    return dataclasses.replace(method, label=text, compressor=parse_method(text)) if ":" in text else method


def text_of(name: str, params: Sequence[tuple[str, Any]]) -> str:
    """Write a compressor and its parameters as text, as the inverse of ``parse_method``.

    >>> text_of("qsgd", [("bits", 8), ("norm", "l2")])
    'qsgd:bits=8,norm=l2'
    """
    written = ",".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in params)
    return ":".join(filter(None, (name, written)))
