"""GRACE, the framework of the survey: its compressors beside ours, on the same tensor in turns.

GRACE is on no package index, so it is read from a checkout, ``git clone https://github.com/sands-lab/grace``. What is
timed is what both call in a step to compress and to decompress one gradient, without an exchange. GRACE sends a byte
for a sign and 64 bits for an index; the column of bits says so.

Before a method is timed both sides decode what they encoded. Where both define the same code the results must be
equal but for the order of a sum; where the code draws random numbers, as close to the tensor as its definition says.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from gradwire.compat import from_params
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire_lab.bench.machine import environment
from gradwire_lab.bench.peer_venv import PeerError
from gradwire_lab.bench.statistics import interleave, stopwatch, summarise
from gradwire_lab.bench.steps import STEPS
from gradwire_lab.bench.triad import Triad
from gradwire_lab.bench.workload import Workload

__all__ = ["row_count", "rows"]

DIRECTORY = Path(".peers/grace")
SIZES = (1 << 16,)
ROUNDS = 200
RATIO = 0.01
TRIAD = "triad"

Row = dict[str, Any]


@dataclass(frozen=True)
class _Method:
    """A compressor that both have.

    Args:
        file: module below ``grace_dl.torch.compressor``, which is the compressor's name in GRACE's dictionary, too.
        kind: class in that module.
        params: arguments of that class, in GRACE's words.
        error: norm of the difference between both decoded tensors, at most, as a part of the gradient's norm; of codes
            that draw random numbers, between either of them and the gradient.
        levels: levels of the gradient's length, to which elements are rounded at random; then n of them may be sqrt(n)
            / (2 levels) away, too.
        drawn: true: the code draws random numbers.
        remembers: true: GRACE's compressor does what here is the work of the method's memory.
    """

    file: str
    kind: str
    params: dict[str, float]
    error: float = 1e-5
    levels: float = math.inf
    drawn: bool = False
    remembers: bool = False

    def allowed(self, n: int) -> float:
        """The error of n elements, at most."""
        return self.error + math.sqrt(n) / (2 * self.levels)

    def ours(self) -> Compressor:
        """Our form of the same method and parameters."""
        known = {key: value for key, value in self.params.items() if key != "lr"}
        return from_params({"compressor": self.file, **known}).compressor


_METHODS = (
    _Method("fp16", "FP16Compressor", {}),
    _Method("topk", "TopKCompressor", {"compress_ratio": RATIO}, error=0.1),
    _Method("threshold", "ThresholdCompressor", {"threshold": 2.5}),
    _Method("dgc", "DgcCompressor", {"compress_ratio": RATIO}, error=1.0, drawn=True),
    _Method("randomk", "RandomKCompressor", {"compress_ratio": RATIO}, error=2 * RATIO**-0.5, drawn=True),
    _Method("signsgd", "SignSGDCompressor", {}),
    _Method("signum", "SignumCompressor", {"momentum": 0.9}, remembers=True),
    _Method("efsignsgd", "EFSignSGDCompressor", {"lr": 0.1}, error=0.05),
    _Method("qsgd", "QSGDCompressor", {"quantum_num": 127}, levels=127, drawn=True),
    _Method("terngrad", "TernGradCompressor", {}, error=2.0, drawn=True),
)
"""GRACE's methods that run on a CPU and decode what they encoded: not ``natural``, a CUDA kernel; ``powersgd``, which
needs Horovod; and ``onebit``, which inverts its signs as bytes, so that what today's torch decodes is 200 times too
large."""


def row_count(sizes: Sequence[int]) -> int:
    """Return the number of rows that ``rows`` gives."""
    return 2 * len(_METHODS) * len(sizes or SIZES)


def rows(sizes: Sequence[int], repeats: int | None = None, directory: Path | None = None) -> Iterator[Row]:
    """GRACE's compressors and ours, in turns on the same tensor: two rows for each method and size.

    Args:
        sizes: elements of a gradient; none: 2^16.
        repeats: rounds; None: 200.
        directory: the checkout of GRACE; None: ``.peers/grace``.

    Raises:
        PeerError: there is no checkout, or it cannot be imported, or a decoded gradient is wrong.
    """
    theirs = _imported((directory or DIRECTORY).resolve())
    for size in sizes or SIZES:
        for method, kind in zip(_METHODS, theirs, strict=True):
            yield from _rows(method, kind(**method.params), size, repeats or ROUNDS)


def _imported(directory: Path) -> list[Any]:
    """GRACE's classes, in the order of ``_METHODS``."""
    if not (directory / "grace_dl" / "torch" / "compressor").is_dir():
        raise PeerError(
            f"--peer-dir must be a checkout of GRACE, got {directory}: git clone https://github.com/sands-lab/grace"
        )
    sys.path.insert(0, str(directory))
    try:
        modules = [importlib.import_module(f"grace_dl.torch.compressor.{each.file}") for each in _METHODS]
    except ImportError as error:
        for name in [name for name in sys.modules if name.partition(".")[0] == "grace_dl"]:
            del sys.modules[name]
        raise PeerError(f"GRACE in {directory} cannot be imported: {error}") from error
    finally:
        sys.path.remove(str(directory))
    found = Path(str(modules[0].__file__))
    if not found.is_relative_to(directory):
        raise PeerError(f"GRACE was imported from {found}, not from {directory}: start the command anew")
    return [getattr(module, each.kind) for module, each in zip(modules, _METHODS, strict=True)]


class _Theirs:
    """GRACE's compressing and decompressing of one gradient, as its communicators call them."""

    def __init__(self, compressor: Any, grad: Tensor) -> None:
        self.compressor, self.grad = compressor, grad

    def __call__(self) -> Tensor:
        sent, context = self.compressor.compress(self.grad, "gradient")
        decoded: Tensor = self.compressor.decompress(sent, context)
        return decoded

    def bits(self) -> float:
        """Sent for each element."""
        sent, _ = self.compressor.compress(self.grad, "gradient")
        return 8.0 * sum(int(each.nbytes) for each in sent) / self.grad.numel()


class _Ours:
    """Encoding and decoding of the same gradient as the exchange calls them, into buffers that are there."""

    def __init__(self, work: Workload, remembers: bool) -> None:
        self.compressor, self.payloads, self.out = work.compressor, work.payloads, work.out
        told = work.grad, work.payload, work.state, work.key
        self.encode = partial(STEPS[1].run, work) if remembers else partial(work.compressor.encode, *told)

    def __call__(self) -> Tensor:
        self.encode()
        capabilities.decode_many(self.compressor, self.payloads, self.out)
        return self.out


def _rows(method: _Method, compressor: Any, size: int, repeats: int) -> Iterator[Row]:
    code = method.ours()
    work = Workload(code, size)
    for each in work.kept.values():
        each.zero_()  # GRACE's memories begin with nothing.
    ours, theirs = _Ours(work, method.remembers), _Theirs(compressor, work.grad.clone())
    _check(method, theirs.grad, ours().clone(), theirs())
    nbytes = 8 * size
    timed = {"grace": stopwatch(theirs), "gradwire": stopwatch(ours), TRIAD: stopwatch(Triad(nbytes))}
    samples = interleave(timed, least=repeats, most=repeats)
    summaries = {name: summarise(each) for name, each in samples.items()}
    bits = {"grace": theirs.bits(), "gradwire": 8 * work.sent / size}
    for name in ("grace", "gradwire"):
        seconds = summaries[name]
        yield {
            "method": code.name,
            "params": capabilities.properties(code)["params"],
            "size": size,
            "op": "encode+decode",
            "implementation": name,
            "seconds": seconds.median,
            "seconds_low": seconds.low,
            "seconds_high": seconds.high,
            "bytes_moved": nbytes,
            "triad_seconds": summaries[TRIAD].median,
            "triad_ratio": summaries[TRIAD].median / seconds.median,
            "wire_bits_per_element": bits[name],
            "speedup": summaries["grace"].median / seconds.median,
            "repeats": seconds.count,
            "checked_size": size,
        } | environment()


def _check(method: _Method, grad: Tensor, ours: Tensor, theirs: Tensor) -> None:
    """Refuse to time what decodes to something else.

    Raises:
        PeerError: the decoded gradient is farther away than the definition of the method says.
    """
    allowed = method.allowed(grad.numel())
    pairs = {"gradwire": (ours, grad), "GRACE": (theirs, grad)} if method.drawn else {"gradwire": (ours, theirs)}
    for name, (decoded, wanted) in pairs.items():
        distance = float((decoded.view(-1) - wanted.view(-1)).norm() / grad.norm())
        if not 0 <= distance <= allowed or not decoded.any():
            raise PeerError(
                f"{method.file} of {name} decodes {grad.numel()} elements to a tensor that is {distance:.3g} of the "
                f"gradient's norm away, and {allowed:.3g} is allowed; nothing was timed"
            )
