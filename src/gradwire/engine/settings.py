"""Options that every integration takes, read in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch.distributed as dist

from gradwire import registry
from gradwire._short_traceback import short_traceback
from gradwire.compat import MethodChoice
from gradwire.compressors.base import Compressor
from gradwire.compressors.simple import SimpleCompressor
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy, Schedule
from gradwire.engine.strategies.base import Strategy
from gradwire.errors import ConfigError, is_float32, nearest, require
from gradwire.memory.base import Memory
from gradwire.memory.residual import DTYPES, SHORT
from gradwire.vocabulary import Configuration

LONGEST = 1e6
"""Seconds that ``timeout`` may be at most."""

__all__ = ["LONGEST", "Settings", "build_compressor", "compressor", "refuse_unknown", "valid_timeout"]


@dataclass(frozen=True)
class Settings(Configuration):
    """The settings of an exchange, besides the compressor.

    Args:
        memory: a memory or its name; None takes what the compressor declares.
        strategy: a strategy or its name; None chooses from declared properties and the number of workers.
        residual_dtype: "bfloat16" ("bf16") halves the memory of the residual and loses a little of it in each rounding;
            "int4" leaves an eighth of it, and loses more.
        min_numel: parameters with fewer elements travel dense, together: biases, norms and narrow layers, which are few
            bytes, and where codes of one or two bits cost quality.
        exclude: name patterns of parameters that travel dense.
        overrides: name pattern to compressor, such as ``{"embedding.*": TopK(ratio=0.001)}``.
        start_after: number of first steps that are dense.
        schedule: compressor parameter to a function of the step, such as ``{"ratio": exponential(0.25, 0.01, 1000)}``.
        seed: seed of all random streams, >= 0.
        timeout: seconds that a collective may take before every rank raises, > 0: longer than a rank may be busy with
            something else, such as an evaluation. None: that of the process group, in torch 30 minutes on Gloo.
        force: use error feedback where the method declares it unsafe, or ``memory="none"`` where it declares it
            required and loses what it does not send.
        budget: budget of errors, with "auto" alone: "exact", "safe" or "small". None: "safe".
        decisions: decisions of an earlier run, with "auto" alone: what ``decisions()`` of its state returned, to be
            made again in the same steps; None: they follow from measurements.
        quiet: true: no line but warnings is written to stderr unasked, as "auto" does at its decisions; the logger
            ``gradwire`` has them in any case.
    """

    memory: Memory | str | None = None
    strategy: Strategy | str | None = None
    residual_dtype: Literal["float32", "bfloat16", "bf16", "int4"] = "float32"
    min_numel: int = 1024
    exclude: Sequence[str] = ()
    overrides: Mapping[str, Compressor | SimpleCompressor | str] = field(default_factory=dict)
    start_after: int = 0
    schedule: Mapping[str, Schedule] = field(default_factory=dict)
    seed: int = 0
    timeout: float | None = None
    force: bool = False
    budget: str | None = None
    decisions: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    quiet: bool = False

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple[Settings, dict[str, Any]]:
        """Split options into settings and the parameters of the compressor."""
        known = {f.name for f in dataclasses.fields(cls)}
        return (
            cls(**{name: value for name, value in options.items() if name in known}),
            {name: value for name, value in options.items() if name not in known},
        )

    def check(self) -> None:
        """Refuse values of a wrong type.

        Raises:
            ConfigError: a value has a wrong type; the message names the option.
        """
        require(valid_timeout(self.timeout), "timeout", f"seconds in (0, {LONGEST:g}] or None", self.timeout)
        require(isinstance(self.memory, Memory | str | None), "memory", "a memory or its name", self.memory)
        require(isinstance(self.strategy, Strategy | str | None), "strategy", "a strategy or its name", self.strategy)
        known = self.residual_dtype in (*DTYPES, *SHORT)
        require(known, "residual_dtype", " or ".join(map(repr, DTYPES)), self.residual_dtype)
        own = isinstance(self.memory, Memory) and self.residual_dtype != "float32"
        require(
            not own, "residual_dtype", "float32 with a memory object, which has a dtype of its own", self.residual_dtype
        )
        for name, flag in (("force", self.force), ("quiet", self.quiet)):
            require(isinstance(flag, bool), name, "True or False", flag)
        for name, value in (("overrides", self.overrides), ("schedule", self.schedule)):
            mapping = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
            require(mapping, name, "a mapping from names", value)

    def policy(self) -> Policy:
        overrides = {
            pattern: build_compressor(value, {}, f"overrides[{pattern!r}]") for pattern, value in self.overrides.items()
        }
        return Policy(self.min_numel, self.exclude, overrides, self.start_after, self.schedule)

    def exchange(
        self, compressor: Any, params: Mapping[str, Any], group: dist.ProcessGroup | None, device: Any
    ) -> Exchange:
        """Build the exchange.

        Raises:
            ConfigError: an unknown name or a value out of range.
        """
        self.check()
        memory, strategy, force = self.memory, self.strategy, self.force
        if isinstance(compressor, MethodChoice):
            force = force or (compressor.force and memory is None)
            memory, strategy = memory or compressor.memory, strategy or compressor.strategy
            compressor = compressor.compressor
        return Exchange(
            build_compressor(compressor, params),
            memory=memory,
            strategy=strategy,
            group=group,
            policy=self.policy(),
            seed=self.seed,
            device=device,
            force=force,
            residual_dtype=self.residual_dtype,
            quiet=self.quiet,
        )


def valid_timeout(value: object) -> bool:
    """Return whether ``value`` is a valid time-out of a collective in seconds, or None."""
    return value is None or (is_float32(value) and 0 < value <= LONGEST)  # type: ignore[operator]


@short_traceback
def compressor(name: str, **params: Any) -> Compressor:
    """Make a compressor by its registered name.

    Args:
        name: ``gradwire methods`` lists them; with parameters it is written "topk:ratio=0.01,values=float16", as on
            the command line.
        params: the compressor's own; the rest keep their defaults.

    Raises:
        ConfigError: an unknown name or parameter, with the nearest known one; a value out of range.

    Example:
        >>> compressor("topk", ratio=0.01).ratio, compressor("topk:ratio=0.01").ratio
        (0.01, 0.01)
    """
    return build_compressor(name, params)


def refuse_parameters(compressor: Compressor, params: Mapping[str, Any]) -> None:
    """Raise an error that says where the parameters belong of a method that was given as an object."""
    name, value = next(iter(params.items()))
    cls = type(compressor).__name__
    own: list[str] = [f.name for f in dataclasses.fields(compressor)] if dataclasses.is_dataclass(compressor) else []
    if name in own:
        raise ConfigError(
            f"{name} must be given to the constructor of {cls}, because the method is an object: "
            f"{cls}({name}={value!r}, ...), got {name}={value!r} among the options"
        )
    options = [f.name for f in dataclasses.fields(Settings)]
    raise ConfigError(f"unknown option {name!r} beside {compressor!r}: {nearest(name, options)}")


def refuse_unknown(compressor: str, params: Mapping[str, Any], others: Iterable[str] = ()) -> None:
    """Refuse parameters that neither a method has nor what is called.

    Args:
        compressor: its name.
        params: parameters that were given beside ``Settings``.
        others: further arguments of what is called.

    Raises:
        ConfigError: one is unknown; the message has the nearest known one.
    """
    known = {*registry.parameters(registry.find("compressors", registry.named_of(compressor)["name"]))}
    for given in params:
        if given not in known:
            options = known | {f.name for f in dataclasses.fields(Settings)} | {*others}
            raise ConfigError(f"{compressor!r} has no parameter {given!r}: {nearest(given, options)}")


def build_compressor(compressor: Any, params: Mapping[str, Any], name: str = "compressor") -> Compressor:
    """Make a compressor from an object or a registered name with parameters.

    Args:
        compressor: the object or the name.
        params: parameters of a method given by name.
        name: name of the argument in an error.

    Raises:
        ConfigError: an unknown name or parameter, with the nearest known one.
    """
    if isinstance(compressor, SimpleCompressor):
        compressor = compressor.adapted()
    if isinstance(compressor, Compressor):
        if params:
            refuse_parameters(compressor, params)
        return compressor
    require(isinstance(compressor, str), name, "a name, a compressor or a recipe", compressor)
    refuse_unknown(compressor, params)
    built: Compressor = registry.build("compressors", compressor, params)
    return built
