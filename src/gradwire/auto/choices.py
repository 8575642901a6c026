"""Choices that ``auto`` has, and the error that they may add.

A method does harm in two ways. What is right on average adds *variance*: it is compared with the variance that the mean
gradient has anyway, because it is one of a batch. What is kept back, or wrong on average, is *bias*: optimizers that
divide by the size of recent gradients do not forgive it (docs/adaptive.md), so under them no budget has any.

    added(b) = e(b) = omega(b) S(b) / W  [+ omega(b) (M(b) + e(b)) where means are encoded again]
               omega(b) (S'(b) + (S(b) - S'(b)) / L) / H, S' = (W M - S) / (W - 1), of means of L ranks on H hosts
    noise(b) = (S(b) - M(b)) / (W - 1)
    sum of added(b) <= variance * sum of noise(b)

S is the mean over the ranks of the squared norms of their own gradients of bucket b, M that of the mean gradient, and
omega what the code adds to a gradient, as a share of its squared norm, measured on the bucket itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gradwire import registry
from gradwire._once import once
from gradwire.auto.traffic import shared, traffic
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.plan import Named, carries
from gradwire.engine.strategies.base import Strategy
from gradwire.errors import ConfigError, nearest

__all__ = [
    "BUDGETS",
    "DENSE",
    "MESSAGES",
    "Choice",
    "Coded",
    "ErrorBudget",
    "budget_of",
    "candidates",
    "candidates_on_hosts",
    "edges",
    "exact_mean",
    "finer",
    "from_config",
    "from_config_of",
    "noise_added",
]


@dataclass(frozen=True)
class ErrorBudget:
    """The error that choices may add.

    Args:
        name: name by which a user asks for the budget.
        variance: variance that all codes together add, over the variance that the batch leaves in the mean, >= 0.
        kept: true: a method may keep back what it does not send, where every optimizer is known to bear it.
        methods: methods that are tried, as a user writes them.
        weights: method in which weights may be gathered; None: they are gathered uncompressed.
    """

    name: str
    variance: float
    kept: bool
    methods: tuple[str, ...]
    weights: str | None = None


WEIGHTS = "blockwise8:block=64"
"""The method for weights that cost no quality where it was measured: blocks of 2048 did in a small recurrent network
(docs/fsdp_reference.md)."""

BUDGETS: Mapping[str, ErrorBudget] = MappingProxyType(
    {
        each.name: each
        for each in (
            ErrorBudget("exact", 0.001, False, ("bf16",)),
            ErrorBudget("safe", 0.15, False, ("bf16", "qsgd:bits=8", "qsgd", "eden:bits=2"), WEIGHTS),
            ErrorBudget(
                "small",
                1.0,
                True,
                (
                    "bf16",
                    "qsgd:bits=8",
                    "qsgd",
                    "eden:bits=2",
                    "eden",
                    "eden:bits=0.5",
                    "topk:ratio=0.01",
                    "powersgd:rank=4",
                ),
                WEIGHTS,
            ),
        )
    }
)
"""The budgets by name. "exact" rounds to bf16 and nothing more. "safe", the default, adds at most 15 % to the variance
of the mean: steps of Adam become shorter by 7 % at most. "small" adds as much as there is: as if the batch were half as
large, with fewest bytes."""

FINE = ("qsgd:bits=8", "bf16")
"""The codes of parameters that take none of few bits: the first that the strategy carries."""

EDGE_BITS = 4.5
"""Codes of fewer bits an element are not for the first and the last layer and for embeddings."""

SUMMED_UP_TO = 32
"""Workers up to which 16-bit payloads are summed as they are."""

_SHAPE = (1024, 1024)

MESSAGES = "allgather"
"""The strategy of what travels in single messages: gathers of weights, and a reduce-scatter to the owners."""

STRATEGIES = ("allreduce", MESSAGES, "two_phase")
"""Strategies of which the fastest is taken, where they carry a method."""

ON_HOSTS = "hierarchical"
"""The strategy that is tried beside these where several ranks share a host."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A way to exchange a bucket: a method and a strategy.

    Args:
        compressor: compressor of the bucket's parameters; ``Identity``: they travel uncompressed.
        strategy: strategy that carries it.
        method: method as a user writes it, such as "eden:bits=2".
    """

    compressor: Compressor
    strategy: Strategy
    method: str

    @property
    def label(self) -> str:
        """The choice as log lines and metrics name it."""
        return "dense" if self.dense else f"{self.method} over {self.strategy.name}"

    @property
    def dense(self) -> bool:
        """Return whether nothing is compressed."""
        return capabilities.identity(self.compressor)

    @property
    def on_hosts(self) -> bool:
        """Return whether what is encoded is the mean of a host's ranks."""
        return self.strategy.by_host

    def twice(self, senders: int) -> bool:
        """Return whether the rank that sums a mean of so many ranks, or hosts, encodes it again."""
        return self.strategy.carrier(self.compressor, senders).reencodes

    @property
    def keeps(self) -> bool:
        """Return whether values that are not sent wait for a later step."""
        return self.compressor.feedback in ("required", "built-in")

    def to_config(self) -> dict[str, str]:
        """Return plain values, from which ``from_config`` makes the choice again."""
        return {"method": self.method, "strategy": self.strategy.name}


@dataclass(frozen=True)
class Coded:
    """A mean of coded gradients.

    Args:
        omega: squared norm of what the code adds to a gradient, as a share of the gradient's.
        own: mean of the squared norms of what the senders encode.
        senders: number of messages that are averaged.
        twice: the mean, with the noise of the messages in it, is encoded again.
    """

    omega: float
    own: float
    senders: int
    twice: bool


def noise_added(mean: float, coded: Coded) -> float:
    """The variance that a code adds to the mean of a bucket, of which ``mean`` is the exact squared norm.

    >>> noise_added(2.0, Coded(0.5, 8.0, 4, False)), noise_added(2.0, Coded(0.5, 8.0, 4, True))
    (1.0, 2.5)
    """
    added = coded.omega * coded.own / coded.senders
    return added + (coded.omega * (mean + added) if coded.twice else 0.0)


def exact_mean(arrived: float, coded: Coded) -> float:
    """The squared norm of the exact mean, of which one has arrived whose squared norm contains the noise of its code.

    >>> exact_mean(3.0, Coded(0.5, 8.0, 4, False)), exact_mean(4.5, Coded(0.5, 8.0, 4, True))
    (2.0, 2.0)
    """
    once = arrived / (1 + coded.omega) if coded.twice else arrived
    return max(0.0, once - coded.omega * coded.own / coded.senders)


def _made(method: str, strategy: str) -> Choice:
    return Choice(registry.build("compressors", method), registry.build("strategies", strategy), method)


DENSE = _made("none", "allreduce")
"""Uncompressed."""


@once
def from_config_of(method: str, strategy: str) -> Choice:
    """Make a choice, one object for a method and a strategy: parameters are joined by a compressor's identity."""
    return DENSE if method == "none" else _made(method, strategy)


def from_config(config: Mapping[str, Any]) -> Choice:
    """Read what ``Choice.to_config`` gave.

    Raises:
        ConfigError: the configuration is not of that form, or names a method or strategy that does not exist.
    """
    try:
        return from_config_of(str(config["method"]), str(config["strategy"]))
    except (KeyError, TypeError):
        raise ConfigError(f"a decision must be a mapping with 'method' and 'strategy', got {config!r}") from None


def budget_of(name: object) -> ErrorBudget:
    """A budget by its name.

    Raises:
        ConfigError: there is no budget of that name.
    """
    if not isinstance(name, str) or name not in BUDGETS:
        allowed = ", ".join(map(repr, BUDGETS))
        raise ConfigError(f"budget must be one of {allowed}, got {name!r}: {nearest(str(name), list(BUDGETS))}")
    return BUDGETS[name]


def candidates(budget: ErrorBudget, workers: int) -> list[Choice]:
    """List the choices for so many workers, without those that cannot send fewer bytes than an all-reduce.

    >>> [each.label for each in candidates(BUDGETS["exact"], 4)]
    ['dense', 'bf16 over allreduce']
    >>> [each.label for each in candidates(BUDGETS["safe"], 2)][2:]
    ['qsgd:bits=8 over allgather', 'qsgd over allgather', 'eden:bits=2 over allgather']
    >>> candidates(BUDGETS["small"], 2)[-1].label
    'powersgd:rank=4 over allreduce'
    >>> [each.label for each in candidates(BUDGETS["safe"], 64)][1:]
    ['bf16 over two_phase', 'qsgd:bits=8 over two_phase', 'qsgd over two_phase', 'eden:bits=2 over two_phase']
    """
    found = [DENSE]
    for method in budget.methods:
        choices = [from_config_of(method, name) for name in STRATEGIES]
        able = [each for each in choices if carries(each.strategy, each.compressor) and _serves(each, workers)]
        found += [each for each in able if _bytes(each, workers) < _bytes(DENSE, workers)]
    return found


def candidates_on_hosts(budget: ErrorBudget) -> list[Choice]:
    """List the choices that ranks have beside the others if several of them share a host, and there are several hosts.

    >>> [each.label for each in candidates_on_hosts(BUDGETS["exact"])]
    ['bf16 over hierarchical']
    >>> "powersgd:rank=4 over hierarchical" in [each.label for each in candidates_on_hosts(BUDGETS["small"])]
    False
    """
    choices = [from_config_of(method, ON_HOSTS) for method in budget.methods]
    return [each for each in choices if carries(each.strategy, each.compressor)]


def _serves(choice: Choice, workers: int) -> bool:
    """Return whether no other strategy is at least as good in every respect, for so many workers."""
    if capabilities.in_rounds(choice.compressor):
        return True
    if choice.compressor.summable:
        # Sums in 16 bits lose what is small beside them, the more the more workers there are.
        return choice.strategy.sums if workers <= SUMMED_UP_TO else choice.strategy.reencodes
    return choice.strategy.gathers or workers > 2


def _bytes(choice: Choice, workers: int) -> float:
    """Estimate the bytes that a rank sends of a tensor."""
    return traffic(shared([("", _SHAPE)], choice.compressor, workers, strategy=choice.strategy), workers).sent


def finer(choice: Choice) -> Compressor:
    """The compressor for an edge parameter in a bucket of this choice; it has enough bits that nothing is lost by it.

    >>> finer(from_config_of("eden:bits=2", "allgather")).name
    'qsgd'
    >>> finer(from_config_of("powersgd:rank=4", "allreduce")).name
    'bf16'
    """
    few = not choice.dense and 8 * capabilities.traffic(choice.compressor, _SHAPE) / math.prod(_SHAPE) < EDGE_BITS
    if not few:
        return choice.compressor
    fine = [from_config_of(each, choice.strategy.name) for each in FINE]
    return next(each.compressor for each in fine if carries(each.strategy, each.compressor))


def edges(shapes: Sequence[Named], embeddings: Iterable[str] = ()) -> frozenset[str]:
    """The parameters for which codes of few bits are unsuitable: the first matrix, the last one, embeddings, and what
    is no matrix: norms and biases, which are few elements. Where nothing is a matrix, parameters are flattened modules,
    and the caller knows which of these have an edge in them.

    Args:
        shapes: names and shapes of all parameters, in the order of the network.
        embeddings: names of the parameters of embeddings.

    >>> sorted(edges([("a", (8, 8)), ("b", (8,)), ("c", (8, 8)), ("d", (8, 8))], ["c"]))
    ['a', 'b', 'c', 'd']
    """
    matrices = [name for name, shape in shapes if len(shape) > 1]
    vectors = [name for name, shape in shapes if len(shape) < 2] if matrices else []
    return frozenset([*matrices[:1], *matrices[-1:], *vectors, *embeddings])
