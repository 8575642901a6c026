"""Optimizers that divide gradients by the size of earlier ones, and what error feedback, bias and noise do to them.

Why:
    * Adam's step is lr m / sqrt(v), where m and v are means of what arrives and of its square. A residual arrives late
      and in one piece: the residual of T steps is T times as large as a gradient, and v becomes T times as large. So it
      counts as about sqrt(T) steps of ordinary size, where T were due. Error feedback keeps the sum of what was sent
      right, but the sum of such steps is another one.
    * An error that is the same in every step stays, however small it is beside other elements, because each element is
      divided by its own size.
    * Noise makes v larger and leaves the mean of m: steps become shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch.optim import Optimizer

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.memory.base import Memory
from gradwire.notices import log

__all__ = [
    "KERAS",
    "STORE",
    "TORCH",
    "Remedies",
    "is_adaptive",
    "is_adaptive_class",
    "is_orthogonal",
    "keeps_momentum_alone",
    "keeps_much",
    "mostly_zero",
    "noise_only",
    "right_on_average",
    "trouble_of",
    "warn_of_sparse_steps",
    "warn_of_spread_zeros",
]


_NAMES = (
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "SparseAdam",
)
_CLASSES = tuple(getattr(torch.optim, name) for name in _NAMES if hasattr(torch.optim, name))
"""The optimizers by these names that this version of torch has."""

_ORTHOGONAL = tuple(getattr(torch.optim, name) for name in ("Muon",) if hasattr(torch.optim, name))
"""Optimizers whose step has one size whatever a gradient's: what arrives late and at once counts for one step."""

_STATE = frozenset({"exp_avg_sq", "exp_avg_sq_row", "exp_inf", "square_avg", "state2"})
"""Names of the second moments in torch's optimizers, and in those of other packages: ``state2`` in bitsandbytes."""

_PLAIN = frozenset({"momentum_buffer", "step", "ax", "eta", "mu"})
"""Names of what SGD and ASGD keep."""


@dataclass(frozen=True)
class Remedies:
    """Parts of a warning that depend on where gradients are exchanged.

    Args:
        fewer: methods for fewer bytes than those of ``eden`` with 2 bits.
        noise: remedy for noise.
    """

    fewer: str
    noise: str


TORCH = Remedies(
    "for fewer bytes exchange steps by gradwire.CompressedStep(optimizer)",
    "Give variance_correction=optimizer, or True to compress_optimizer, which makes them as long as before",
)
KERAS = Remedies(
    "for 1 bit and fewer 'eden' with variance_correction=True",
    "Give variance_correction=True to DistributedOptimizer, which makes them as long as before",
)
STORE = Remedies(
    "for fewer bytes exchange steps by gradwire.CompressedStep(optimizer)",
    "A store cannot measure by how much: take a higher learning rate; docs/kvstore_reference.md says how high",
)

_WHY = {
    "late": (
        "%s keeps back what it does not send, and %s divides gradients by the size of recent ones: training ends "
        "worse. "
    ),
    "votes": (
        "%s hands out votes, all of one size, and %s divides by the size of what arrives: training may end far worse. "
    ),
    "biased": (
        "What %s sends is wrong on average, and %s divides gradients by the size of recent ones: training may end far "
        "worse. "
    ),
    "noisy": "%s adds noise to gradients, and %s divides by their root mean square, so its steps become shorter. ",
}
_LATE_FOR_MUON = (
    "%s keeps back what it does not send, and a step of %s has one size whatever a gradient's: what arrives late and "
    "at once counts for one step, and a residual makes no sense. Training ends worse. "
)
_INSTEAD = "Use 'qsgd' with bits=4, or 'eden' with bits=2; %s (docs/adaptive.md; force=True says that you know)"
_FIGURES = "%s (docs/adaptive.md)"
_SPREAD = (
    "%s makes noise of zeros, and %s divides what arrives by its own size. In the first step %.0f %% of the gradient "
    "of %r were zeros: give it overrides={%r: 'qsgd:bits=4'} (docs/choosing.md)"
)
_SPARSE = (
    "In the first round %.0f %% of the step of %r were zeros: a row that few workers have seen moves too little when "
    "the steps of their %s are averaged. gradwire.compress_ddp averages gradients (docs/transformer.md)"
)

MOSTLY = 0.5
"""The share of zeros above which a parameter is taken for an embedding whose rows are rarely used."""


@dataclass(frozen=True)
class Trouble:
    """Property of a method that an optimizer that divides by the size of recent gradients suffers from.

    Args:
        kind: "late": much of a gradient is sent later. "votes": what arrives is no estimate of a gradient. "biased":
            it is a wrong one. "noisy": it is right on average, but far from the gradient.
        method: the method in words.
    """

    kind: Literal["late", "votes", "biased", "noisy"]
    method: str

    @property
    def harmful(self) -> bool:
        """Return whether training ends worse, whatever the learning rate; noise only asks for another one."""
        return self.kind != "noisy"

    def warn(self, optimizer: str, remedies: Remedies = TORCH, *, orthogonal: bool = False) -> None:
        """Warn what such a method does to an optimizer of this name, and say what to use.

        Args:
            orthogonal: true: its steps have one size, as Muon's.
        """
        end = _INSTEAD % remedies.fewer if self.harmful else _FIGURES % remedies.noise
        why = _LATE_FOR_MUON if orthogonal and self.kind == "late" else _WHY[self.kind]
        log.warning("%s%s", why % (self.method, optimizer), end)


def mostly_zero(zeros: Mapping[str, float], names: Iterable[str]) -> str | None:
    """Find the parameter of these names of which most was zero; None: of no parameter more than half was.

    >>> mostly_zero({"words": 0.9, "head": 0.1}, ["words", "head"]), mostly_zero({"head": 0.1}, ["head"])
    ('words', None)
    """
    most = max(names, key=lambda name: zeros.get(name, 0.0), default=None)
    return most if most is not None and zeros.get(most, 0.0) > MOSTLY else None


def warn_of_spread_zeros(method: str, optimizer: str, parameter: str, share: float) -> None:
    """Warn that a method makes noise of the zeros of a gradient, of which there are many."""
    log.warning(_SPREAD, repr(method), optimizer, 100 * share, parameter, parameter)


def warn_of_sparse_steps(optimizer: str, parameter: str, share: float) -> None:
    """Warn that steps which are mostly zeros are averaged."""
    log.warning(_SPARSE, 100 * share, parameter, optimizer)


def is_adaptive(optimizer: Optimizer) -> bool:
    """Return whether an optimizer divides by a mean of squares; one of another package shows it after its first step.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> is_adaptive(torch.optim.AdamW([weight])), is_adaptive(torch.optim.SGD([weight], lr=0.1))
    (True, False)
    """
    states = (state for state in getattr(optimizer, "state", {}).values() if isinstance(state, dict))
    return is_adaptive_class(type(optimizer)) or any(not _STATE.isdisjoint(state) for state in states)


def is_orthogonal(optimizer: Optimizer) -> bool:
    """Return whether an optimizer makes the singular values of its steps equal, and so suffers from residuals too."""
    return isinstance(optimizer, _ORTHOGONAL)


def keeps_momentum_alone(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is known to make steps as long as gradients are: it keeps a momentum at most, and is
    no Muon by its name.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.ones(2)
    >>> theirs = type("MuonOfAnother", (torch.optim.SGD,), {})
    >>> kinds = [torch.optim.SGD, torch.optim.Rprop, theirs]
    >>> optimizers = [kind([weight], lr=0.1) for kind in kinds]
    >>> for each in optimizers:
    ...     each.step()
    >>> [keeps_momentum_alone(each) for each in optimizers]
    [True, False, False]
    """
    states = [*getattr(optimizer, "state", {}).values()]
    if not all(isinstance(state, dict) for state in states):
        return False
    kept = {str(name) for state in states for name in state}
    return kept <= _PLAIN and not any("muon" in kind.__name__.lower() for kind in type(optimizer).__mro__)


def is_adaptive_class(optimizer: type[Optimizer]) -> bool:
    """Return whether a class is one of torch's optimizers that divide by a mean of squares, or derived from one."""
    return issubclass(optimizer, _CLASSES)


def keeps_much(compressor: Compressor, memory: Memory) -> str | None:
    """Describe in words why a method sends much of a gradient later; None if it does not."""
    late = memory.late and not capabilities.fine(compressor)
    return f"{compressor.name!r} with memory {memory.name!r}" if late else None


def right_on_average(compressor: Compressor) -> bool:
    """Return whether the errors of a method average out over the steps, or are small."""
    return compressor.unbiased or capabilities.fine(compressor) or capabilities.identity(compressor)


def noise_only(compressor: Compressor, memory: Memory) -> bool:
    """Return whether the error of a method is noise around the right mean, or too small to matter."""
    return right_on_average(compressor) and keeps_much(compressor, memory) is None


def trouble_of(compressor: Compressor, memory: Memory) -> Trouble | None:
    """Find what an adaptive optimizer suffers from a method: the worst of it; None: nothing.

    >>> from gradwire import registry
    >>> build = registry.build
    >>> [found and found.kind for found in (
    ...     trouble_of(build("compressors", name), build("memory", "none")) for name in ("fp8", "eden", "signsgd")
    ... )]
    [None, 'noisy', 'votes']
    """
    if kept := keeps_much(compressor, memory):
        return Trouble("late", kept)
    method = repr(compressor.name)
    if not right_on_average(compressor):
        return Trouble("votes" if capabilities.votes(compressor) else "biased", method)
    return None if capabilities.fine(compressor) or capabilities.identity(compressor) else Trouble("noisy", method)
