"""Apache MXNet 1.9.1: the 2-bit push of its "device" store, beside ours.

One push of two gradients is the same work on both sides: each sender adds its gradient to a residual of its own and
encodes the sum to 2 bits an element; then both payloads are decoded and summed, in order, into the stored value.
Before anything is timed, several pushes of random gradients must leave the same bits in both stores.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.vocabulary import Key
from gradwire_lab.bench.machine import environment
from gradwire_lab.bench.mxnet_environment import DIRECTORY, REQUIREMENTS
from gradwire_lab.bench.peer_process import Process
from gradwire_lab.bench.peer_venv import PeerError, python_with
from gradwire_lab.bench.statistics import interleave, stopwatch, summarise
from gradwire_lab.bench.triad import Triad

__all__ = ["MXNet", "OurStore", "compare", "row_count", "rows"]

SIZES = (25_000_000,)
THRESHOLD = 0.5
SENDERS = 2
PUSHES = 3
PAUSE = 0.02

Row = dict[str, Any]


class MXNet:
    """MXNet's stores in a process of their own; use it as a context manager.

    Args:
        directory: folder of the virtual environment, made if need be.
        threads: given to MXNet as OMP_NUM_THREADS.

    Raises:
        PeerError: MXNet cannot be installed here.
    """

    def __init__(self, directory: Path = DIRECTORY, threads: int = 1) -> None:
        python = python_with(REQUIREMENTS, directory)
        self._files = tempfile.TemporaryDirectory(prefix="gradwire-mxnet-")
        script = Path(__file__).with_name("_mxnet_store.py")
        self._process = Process(python, script, {"OMP_NUM_THREADS": str(threads)})

    @property
    def version(self) -> str:
        return str(self._process.ask("version"))

    def open(self, name: str, size: int, threshold: float) -> float:
        """Open a new store of one key with ``size`` zeros, and return the threshold as MXNet understood it.

        MXNet reads decimal text with errors in the last bit: 1.5e-38 becomes 1.4999999e-38.
        """
        return float(self._process.ask("open_store", name=name, size=size, threshold=threshold))

    def open_plain(self, name: str, size: int) -> None:
        """Open a new store that does not compress."""
        self._process.ask("open_store", name=name, size=size, threshold=None)

    def load(self, gradients: Sequence[Tensor]) -> None:
        """Load the gradients that the next pushes send, one from each sender."""
        files = [self._path(f"gradient{i}") for i in range(len(gradients))]
        for file, gradient in zip(files, gradients, strict=True):
            np.save(file, gradient.numpy())
        self._process.ask("load", files=files)

    def push(self, name: str) -> float:
        """Push, wait until it is stored, and return the seconds, measured in MXNet's process."""
        return float(self._process.ask("push", name=name))

    def pull(self, name: str) -> Tensor:
        """Fetch the stored value."""
        file = self._path("pulled")
        self._process.ask("pull", name=name, file=file)
        return torch.from_numpy(np.load(file))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.close()
        self._files.cleanup()

    def _path(self, name: str) -> str:
        return str(Path(self._files.name, f"{name}.npy"))


class OurStore:
    """The same push with gradwire's compressor.

    Args:
        size: elements.
        threshold: threshold of the 2-bit code.
        senders: each has a residual of its own.
    """

    def __init__(self, size: int, threshold: float = THRESHOLD, senders: int = SENDERS) -> None:
        self.code = TwoBit(threshold)
        layout = self.code.layout((size,))
        self.payloads = layout.views(torch.zeros((senders, layout.nbytes), dtype=torch.uint8))
        self.residuals = [torch.zeros(size) for _ in range(senders)]
        self.value = torch.zeros(size)

    def push(self, gradients: Sequence[Tensor]) -> None:
        for i, (gradient, residual) in enumerate(zip(gradients, self.residuals, strict=True)):
            payload = tuple(field[i] for field in self.payloads)
            self.code.encode_feedback(gradient, residual, payload, {}, Key())
        self.value.zero_()
        self.code.add_decoded_many(self.payloads, self.value)


def compare(mxnet: MXNet, pushes: Sequence[Sequence[Tensor]], threshold: float) -> None:
    """Push each list of gradients to both, from residuals of zero, and compare the stored values bit for bit.

    Raises:
        PeerError: a bit differs.
    """
    size = pushes[0][0].numel()
    ours = OurStore(size, mxnet.open("compared", size, threshold), len(pushes[0]))
    for number, gradients in enumerate(pushes):
        mxnet.load(gradients)
        mxnet.push("compared")
        ours.push(gradients)
        theirs = mxnet.pull("compared")
        places = (theirs.view(torch.int32) != ours.value.view(torch.int32)).nonzero().view(-1).tolist()
        if places:
            at = places[0]
            raise PeerError(
                f"push {number} of {size} elements at threshold {threshold:g} differs from MXNet at {len(places)}"
                f" places, first at {at}: {ours.value[at].item()} instead of {theirs[at].item()}; nothing was timed"
            )


def row_count(sizes: Sequence[int]) -> int:
    """The number of rows that ``rows`` gives."""
    return 3 * len(sizes or SIZES)


def rows(sizes: Sequence[int], repeats: int | None = None, directory: Path | None = None) -> Iterator[Row]:
    """Yield rows of MXNet with and without compression, and of gradwire, measured in turns on the same arrays.

    Args:
        sizes: elements of a gradient; none: 25,000,000.
        repeats: rounds; None: 15.
        directory: folder of the peer's virtual environment; None: ``.peers/mxnet``.

    Raises:
        PeerError: MXNet cannot be installed or run here, or the results differ.
    """
    with MXNet(directory or DIRECTORY, torch.get_num_threads()) as mxnet:
        for size in sizes or SIZES:
            yield from _rows(mxnet, size, repeats or 15)


def _rows(mxnet: MXNet, size: int, repeats: int) -> Iterator[Row]:
    generator = torch.Generator().manual_seed(size)
    pushes = [[torch.randn(size, generator=generator) for _ in range(SENDERS)] for _ in range(PUSHES)]
    compare(mxnet, pushes, THRESHOLD)
    samples = _times(mxnet, pushes[-1], repeats)
    theirs = f"mxnet {mxnet.version}"
    compressed = summarise(samples["mxnet"]).median
    for name, code, implementation in _CONTESTANTS:
        seconds = summarise(samples[name])
        triad = summarise(samples[_triad(code)])
        nbytes, wire = _fewest_bytes(code, size), code.layout((size,)).nbytes
        yield {
            "method": code.name,
            "params": capabilities.properties(code)["params"],
            "size": size,
            "op": f"push{SENDERS}",
            "implementation": implementation or theirs,
            "seconds": seconds.median,
            "seconds_low": seconds.low,
            "seconds_high": seconds.high,
            "bytes_moved": nbytes,
            "triad_seconds": triad.median,
            "triad_ratio": triad.median / seconds.median,
            "wire_bits_per_element": 8 * wire / size,
            "speedup": compressed / seconds.median,
            "repeats": seconds.count,
            "checked_size": size,
        } | environment()


_CONTESTANTS: tuple[tuple[str, Compressor, str | None], ...] = (
    ("mxnet", TwoBit(THRESHOLD), None),
    ("mxnet plain", Identity(), None),
    ("ours", TwoBit(THRESHOLD), "gradwire"),
)


def _times(mxnet: MXNet, gradients: Sequence[Tensor], repeats: int) -> dict[str, list[float]]:
    size = gradients[0].numel()
    ours = OurStore(size)
    mxnet.load(gradients)
    mxnet.open("2bit", size, THRESHOLD)
    mxnet.open_plain("plain", size)
    contestants = {
        "mxnet": lambda: mxnet.push("2bit"),
        "mxnet plain": lambda: mxnet.push("plain"),
        "ours": stopwatch(lambda: ours.push(gradients)),
    } | {_triad(code): stopwatch(Triad(_fewest_bytes(code, size))) for code in (TwoBit(THRESHOLD), Identity())}
    return interleave(contestants, least=repeats, most=repeats, pause=PAUSE)


def _triad(code: Compressor) -> str:
    return f"triad of {code.name}"


def _fewest_bytes(code: Compressor, size: int) -> int:
    """The fewest bytes to move: a sender reads its gradient and, if it compresses, updates its residual and writes a
    payload; then come those of the sum.
    """
    if capabilities.identity(code):
        return (SENDERS + 1) * 4 * size
    wire = code.layout((size,)).nbytes
    return SENDERS * (12 * size + wire) + SENDERS * wire + 4 * size
