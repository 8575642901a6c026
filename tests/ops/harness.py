"""Tools that the tests of the operations share: sizes, awkward values, guarded buffers, comparison bit for bit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.kernels.base import Op
from gradwire.kernels.native import kernels
from tests.cases import pairwise

SIZES = (0, 1, 2, 7, 15, 16, 17, 31, 33, 1000, 100003)
TARGETS: list[str] = kernels.targets() if kernels is not None else []

# n, threads (two where a kernel would use them), elements off the alignment
SHAPES = tuple((n, threads, threads - 1 + n % 3) for n in SIZES for threads in ((1, 2) if n > 32768 else (1,)))

_POISON = 0xA5
_MARGIN = 64  # bytes around every buffer that nobody may touch
_AWKWARD = (0.0, -0.0, 0.5, -0.5, 0.49999997, 1.0, 1e-45, -1e-45, 1.1e-38, 3e38, -3e38, 1e8, 6e-8, 65519.9, 65520.0)
_NAN_BITS = (0x7FFFFFFF, 0x7FC00001, 0x7F800001)  # quiet and signalling, with payloads that rounding could carry away
_NONFINITE = torch.cat(
    [torch.tensor([float("inf"), float("-inf"), float("nan")]), torch.tensor(_NAN_BITS).int().view(torch.float32)]
)


class Guarded:
    """A tensor between two margins, ``offset`` elements away from the alignment of the allocator."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0, pitch: int = 0) -> None:
        rows, width = (1, *shape) if len(shape) == 1 else shape
        size, step = dtype.itemsize, width + pitch
        self.memory = torch.full((2 * _MARGIN + (rows * step + offset) * size,), _POISON, dtype=torch.uint8)
        flat = self.memory[_MARGIN : self.memory.numel() - _MARGIN].view(dtype)[offset:]
        self.tensor = torch.as_strided(flat, (rows, width), (max(step, 1), 1))
        self.tensor = self.tensor[0] if len(shape) == 1 else self.tensor

    def fill(self, values: Tensor) -> None:
        self.tensor.copy_(values)

    def outside(self) -> Tensor:
        """A copy of the memory with the tensor itself blanked out."""
        kept = self.tensor.clone()
        self.tensor.zero_()
        outside = self.memory.clone()
        self.tensor.copy_(kept)
        return outside


def gradient(n: int, seed: int, *, finite: bool = True) -> Tensor:
    """Normal values with the awkward ones scattered among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator)
    special = torch.tensor(_AWKWARD) if finite else torch.cat([torch.tensor(_AWKWARD), _NONFINITE])
    places = torch.randint(0, n, (max(n // 5, 1),), generator=generator) if n else torch.empty(0, dtype=torch.int64)
    x[places] = special[torch.randint(0, special.numel(), places.shape, generator=generator)]
    return x


def random_bytes(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def assert_same_bits(actual: Tensor, expected: Tensor, what: str) -> None:
    """Equal bit for bit, where a NaN equals any NaN."""
    nan = torch.isnan(expected)
    assert torch.equal(torch.isnan(actual), nan), f"{what}: NaN at other places"
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.element_size()]
    different = (actual.contiguous().view(integer) != expected.contiguous().view(integer)) & ~nan
    where = different.nonzero()
    assert where.numel() == 0, f"{what}: {len(where)} differ, first at {where[0].tolist()}: {actual[different][0]!r}"


@dataclass
class Case:
    """An operation, and what to call it with, by name.

    ``inputs`` are only read, ``outputs`` are written: what they hold before the call, or a (shape, dtype) for one that
    must be written all over. Rows of a 2-D input are ``pitch`` elements further apart than they are long. Where there
    are outputs ``used`` and ``stream``, of the latter only so many elements have a meaning.
    """

    op: Op[Any]
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor | tuple[tuple[int, ...], torch.dtype]] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    pitch: int = 0


def _output(x: Tensor | tuple[tuple[int, ...], torch.dtype], offset: int) -> Guarded:
    if isinstance(x, tuple):
        return Guarded(*x, offset)
    buffer = Guarded(tuple(x.shape), x.dtype, offset)
    buffer.fill(x)
    return buffer


def _input(x: Tensor, offset: int, pitch: int) -> Guarded:
    buffer = Guarded(tuple(x.shape), x.dtype, offset, pitch if x.dim() == 2 else 0)
    buffer.fill(x)
    return buffer


def run(case: Case, function: Callable[..., None], offset: int = 0) -> dict[str, Tensor]:
    """Call ``function`` on guarded copies; check that it wrote nothing else, and return the outputs."""
    inputs = {name: _input(x, offset, case.pitch) for name, x in case.inputs.items()}
    outputs = {name: _output(x, offset) for name, x in case.outputs.items()}
    buffers = inputs | outputs
    untouched = {name: b.memory.clone() if name in inputs else b.outside() for name, b in buffers.items()}
    function(**{name: b.tensor for name, b in buffers.items()}, **case.arguments)
    for name, buffer in buffers.items():
        now = buffer.memory if name in inputs else buffer.outside()
        assert torch.equal(now, untouched[name]), f"{name}: memory that is not an output was written"
    return {name: b.tensor for name, b in outputs.items()}


@contextmanager
def dispatched(target: str) -> Iterator[None]:
    """Force a SIMD target, and fail where the code inside did not start one of its kernels."""
    previous, calls = kernels.target(), kernels.calls(target)
    kernels.set_target(target)
    try:
        yield
    finally:
        kernels.set_target(previous)
    assert kernels.calls(target) > calls, f"no kernel of {target} was started"


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let kernels work with so many threads, however busy the machine is."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    if kernels is not None:
        kernels.set_retreat(False)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
        if kernels is not None:
            kernels.set_retreat(True)


def check_against_reference(case: Case, threads: int, offset: int) -> None:
    """On every target of this CPU: what the reference gives, which is computed once."""
    if not TARGETS:
        pytest.skip("the C++ extension is not built")
    expected = run(case, case.op.reference)
    for target in TARGETS:
        with dispatched(target), torch_threads(threads), _named(f"target={target}, {case.arguments}"):
            assert_same_outputs(case, run(case, case.op, offset), expected)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Note in what fails inside what was being done."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


def assert_same_outputs(case: Case, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare bit for bit what has a meaning in every output."""
    for name, tensor in actual.items():
        meant = int(expected["used"]) if name == "stream" and "used" in expected else tensor.numel()
        assert_same_bits(tensor[:meant], expected[name][:meant], f"{case.op.name}.{name}")


def sweep(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test as one with every size ``n``, some ``offset`` and one or two ``threads``, and its own parameters.

    Every two values meet; all targets of this CPU are compared in each case.
    """
    return pairwise(pytest.mark.parametrize(("n", "threads", "offset"), SHAPES)(test))
