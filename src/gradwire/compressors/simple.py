"""Simple interface for new methods: write ``compress`` and ``decompress`` with GRACE's names, and the method runs
everywhere.

What it costs against the full contract (``gradwire.Compressor``): the gradient is copied before ``compress`` sees it,
one dense tensor is made for each rank at decompression, and ``compress`` runs once more for each new shape, on zeros,
to learn how many bytes it will send. For an idea that is to be tried, that is a fair price.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradwire.errors import as_python
from gradwire.vocabulary import State

if TYPE_CHECKING:
    from gradwire.compressors.base import Compressor, Feedback

__all__ = ["SimpleCompressor"]


class SimpleCompressor(ABC):
    """Base of a method written with GRACE's names: subclass it, define ``compress`` and ``decompress``.

    What follows from the shape alone may be in ``ctx``; what depends on the values must be in ``tensors``, for only
    they travel. Numbers and strings among the instance's attributes are its configuration, which all ranks compare.

    Args:
        average: divide the aggregate by the number of workers; False hands out what ``aggregate`` gives. None keeps
            the class's attribute, True unless it says otherwise.
        tensors_size_are_same: must be True. A method whose sizes depend on the values needs the full contract.

    Example:
        >>> class Half(SimpleCompressor):
        ...     def compress(self, tensor, name):
        ...         return [tensor.half()], None
        ...
        ...     def decompress(self, tensors, ctx):
        ...         return tensors[0].float()
        >>> code = Half().adapted()
        >>> code.decompress(code.compress(torch.tensor([1.5, -2.0])), (2,)).tolist()
        [1.5, -2.0]

    Source:
        H. Xu et al., "GRACE: A Compressed Communication Framework for Distributed Machine Learning", ICDCS 2021.
    """

    average: bool = True
    tensors_size_are_same: bool = True

    unbiased: bool = False
    """E[decompress(compress(x))] = x."""

    fine: bool = False
    """The part that a step does not send is small, so that Adam works as without compression:
    ``gradwire.testing.adaptive.check_fine`` tries it."""

    random: bool = False
    """``compress`` draws random numbers: from ``self.generator``, so that a run can be repeated."""

    summable: bool = False
    """``compress`` gives one float tensor, ``decompress`` is linear: the tensors are all-reduced."""

    feedback: Feedback = "optional"
    """Role of the ``residual`` memory for the method; "required" adds that memory unless another is asked for."""

    headroom: float = 2.0**32
    """The factor with which an element must stay finite in float32, or it counts as not finite where nothing is kept;
    at least 1. A method that sends float16 says 2**128 / 65520, because from 65520 on its values are infinite."""

    alignment: int = 1
    """A flattened tensor may be cut at multiples of this many elements; 0: ``compress`` needs it whole."""

    ctx_from_shape: bool = True
    """``ctx`` is the same in every call for one shape. Where it is not, say False: each payload then carries 8 bytes
    more, and is decompressed with the ``ctx`` of the receiving rank's own latest call for that tensor."""

    generator: torch.Generator
    """Fresh for each ``compress``, seeded from the run's seed, the step, the tensor and the rank."""

    def __init__(self, average: bool | None = None, tensors_size_are_same: bool | None = None) -> None:
        if average is not None:
            self.average = average
        if tensors_size_are_same is not None:
            self.tensors_size_are_same = tensors_size_are_same

    @cached_property
    def state(self) -> defaultdict[str, State]:
        """The state ``state[name]`` of a tensor, as ``init_state`` made it."""
        return defaultdict(dict)

    @abstractmethod
    def compress(self, tensor: Tensor, name: str) -> tuple[Sequence[Tensor], Any]:
        """Return the tensors to send, and a context that ``decompress`` needs besides.

        Args:
            tensor: float32, in the parameter's shape (flat where it is a shard); a copy, to be changed at will.
            name: the same for one tensor in every step, on every rank and after a restart; it is made from the
                parameter's name, but it is not that name.

        Returns:
            Tensors whose sizes and dtypes follow from the shape of ``tensor``, and ``ctx``.
        """

    @abstractmethod
    def decompress(self, tensors: Sequence[Tensor], ctx: Any) -> Tensor:
        """Return the dense tensor that ``tensors`` represent.

        Args:
            tensors: copies of what ``compress`` gave on some rank, in the same shapes and dtypes.
            ctx: see ``ctx_from_shape``.
        """

    def aggregate(self, tensors: Sequence[Tensor]) -> Tensor:
        """Aggregate the decompressed tensors of all ranks, in rank order, to one: their sum unless overridden."""
        return torch.stack(list(tensors)).sum(0)

    def init_state(self, shape: Sequence[int], device: torch.device) -> State:
        """Make the initial ``state[name]`` with every key that will ever be used, in its final shape."""
        return {}

    def memory_compensate(self, tensor: Tensor, name: str) -> Tensor:
        """Return the tensor to compress in place of ``tensor``; the counterpart of ``memory_update``."""
        return tensor

    def memory_update(
        self, tensor: Tensor, name: str, compressor: SimpleCompressor, tensor_compressed: Sequence[Tensor], ctx: Any
    ) -> None:
        """Store in ``state[name]`` what was not sent. Overriding it replaces gradwire's memories."""
        return

    def adapted(self, config: Mapping[str, Any] | None = None) -> Compressor:
        """Return this method under the full contract, for ``overrides=`` and tests.

        Args:
            config: name and parameters from which it was built; None: those of its class and ``config``.
        """
        from gradwire.compressors._adapted import Adapted

        return Adapted(self, config)

    def config(self) -> dict[str, Any]:
        """Return the numbers, strings and flags among the instance's attributes."""
        return {
            key: value
            for key, value in ((key, as_python(given)) for key, given in vars(self).items())
            if not key.startswith("_") and isinstance(value, bool | int | float | str | None)
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.config().items())})"
