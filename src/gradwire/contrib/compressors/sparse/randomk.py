"""Random sparsification with the same choice on all ranks, so that payloads can be summed."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Feedback
from gradwire.compressors.sparsifier import Sparsifier
from gradwire.contrib.compressors.sparse import ops
from gradwire.contrib.compressors.sparse._draws import HEADER, draws, longest
from gradwire.errors import is_float32, is_int, require
from gradwire.kernels import Each, Pieces
from gradwire.kernels.pieces import adjacent
from gradwire.vocabulary import Field, Key, Payload

__all__ = ["RandomK"]


@dataclass(frozen=True)
class RandomK(Sparsifier):
    """Send one element, chosen at random, of each of k strata; k = max(1, ceil(ratio n)).

    C(x) = x on the chosen elements (times the size of their stratum if ``scaled``), 0 elsewhere. With L elements in
    the longest stratum:

        raw       E|C(x) - x|^2 <= (1 - 1/L) |x|^2
        scaled    E C(x) = x,  omega = L - 1

    The strata cut the tensor into k runs of equal size, up to one, so no element is chosen twice and each has the same
    chance. All ranks choose alike: a seed follows from the run's seed, the parameter and the step, no indices travel,
    and an all-reduce carries the values. The noise of W ranks is common to them and does not average out.

    Args:
        ratio: share of the elements that are sent, in (0, 1]. Lower: fewer bytes, and what is left out waits longer in
            the residual.
        scaled: multiply what is sent, so that the mean is right. Without a residual only: what would be left in one
            grows without bound, so error feedback is "unsafe".
        run: neighbours that are chosen together, 1 to 4096. 16 and more: whole cache lines, faster where the ratio is
            high; less random.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = RandomK(ratio=0.25)
        >>> out = code.decompress(code.compress(torch.ones(8)), (8,))
        >>> int(out.sum()), out.view(2, 4).sum(1).tolist()
        (2, [1.0, 1.0])

    Source:
        S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018; J. Konecny, P. Richtarik,
        "Randomized Distributed Mean Estimation", 2018 (scaled).
    """

    ratio: float = 0.01
    scaled: bool = False
    run: int = 1

    name = "randomk"
    family = "sparsification"
    reference = "S. U. Stich, J.-B. Cordonnier, M. Jaggi, Sparsified SGD with Memory, NeurIPS 2018"
    summable = True
    random = True
    takes_pieces = True

    def __post_init__(self) -> None:
        require(is_float32(self.ratio) and 0 < self.ratio <= 1, "RandomK.ratio", "in (0, 1]", self.ratio)
        require(isinstance(self.scaled, bool), "RandomK.scaled", "True or False", self.scaled)
        require(is_int(self.run, 1, 4096), "RandomK.run", "an integer in [1, 4096]", self.run)

    @property
    def feedback(self) -> Feedback:
        return "unsafe" if self.scaled else "required"

    @property
    def bounded(self) -> str:
        return repr(replace(self, scaled=False))

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """Return whether the method is unbiased, as it is with scaling."""
        return self.scaled

    @property
    def exact(self) -> bool:
        return not self.scaled

    @property
    def contraction(self) -> bool:
        return not self.scaled

    def delta(self, n: int) -> float:
        return 0.0 if self.scaled else 1 / longest(n, self.draws(n), self.run)

    def omega(self, n: int) -> float:
        return longest(n, self.draws(n), self.run) - 1.0 if self.scaled else capabilities.omega.default(self, n)

    def draws(self, n: int) -> int:
        """The number of runs chosen of ``n`` elements.

        >>> RandomK(ratio=0.1).draws(100), RandomK(ratio=0.1, run=16).draws(1000)
        (10, 7)
        """
        return draws(n, self.ratio, self.run)

    def slots(self, n: int) -> int:
        return self.draws(n) * self.run

    def places(self, n: int) -> tuple[Field, ...]:
        return (Field("seed", torch.float32, HEADER),)

    def select(self, x: Tensor, values: Tensor, places: Payload, key: Key, scale: float = 1.0) -> None:
        ops.randomk_encode(x, values, places[0], seeds_of(key, x.device), self.run, self.scaled, scale)

    def scatter(self, values: Tensor, places: Payload, out: Tensor, scale: float) -> None:
        ops.randomk_add_decoded(values, places[0], out, self.run, scale)


def seeds_of(key: Key, device: torch.device) -> Tensor:
    """Compute 32 bits of seed that are the same on all ranks, int64 of one element; or those of all pieces."""
    streams: object = key.stream(common=True)
    if isinstance(streams, Each):
        return cast(Tensor, Pieces(_seeds(streams, key.step, device), adjacent((1,) * len(streams))))
    return _seeds([streams], key.step, device)


def _seeds(streams: Iterable[object], step: int, device: torch.device) -> Tensor:
    seeds = array("q", (_seed_of(stream, step) for stream in streams))
    # The driver takes a copy of so few bytes at once, so nothing waits for the device.
    return torch.frombuffer(seeds, dtype=torch.int64).to(device, non_blocking=True)


def _seed_of(stream: object, step: int) -> int:
    text = f"{stream}/{step}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")
