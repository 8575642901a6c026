"""What an operation is: one file with its signature, its plain-torch reference and its kernels.

1. It works on flat tensors, writes into the ones its schema marks ``(a!)``, and returns None.
2. The reference runs on any device and defines the bits: a kernel agrees with it on every one of them.
3. Arguments are checked before a kernel sees an address; a wrong one is a ``ConfigError`` that names it.
4. The call goes through ``torch.ops.gradwire.<name>``, so ``torch.compile`` and autograd see an ordinary operator.
5. On the CPU the C++ kernel runs where the extension is loaded, on a GPU the Triton kernel of the same name, imported
   on first use; everywhere else, and where these are missing, the reference.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Generic, ParamSpec

import torch

from gradwire.ops.native import check_environment, kernels, problem, reference_forced

__all__ = ["Op", "operation"]

P = ParamSpec("P")

_library: Any = torch.library.Library("gradwire", "DEF")  # type: ignore[no-untyped-call]


class Op(Generic[P]):
    """An operation: call it, or reach its reference and register its kernels.

    Attributes:
        name: its name under ``torch.ops.gradwire``.
        reference: the plain-torch version, without the checks.
    """

    def __init__(self, schema: str, reference: Callable[P, None], check: Callable[P, None]) -> None:
        self.name = schema.partition("(")[0]
        self.reference = reference
        self._check = check
        functools.update_wrapper(self, reference)
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(self.name, self._checked(reference), "CompositeExplicitAutograd")
        _library.impl(self.name, lambda *_args, **_kwargs: None, "Meta")
        if not reference_forced:
            _library.impl(self.name, self._checked(self._triton), "CUDA")
        self._dispatch: Any = getattr(torch.ops.gradwire, self.name).default

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Check the arguments and run the kernel of their device."""
        self._dispatch(*args, **kwargs)

    def kernel(self, device: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
        """Register the decorated function as the kernel of a device type; without the C++ extension this does nothing.

        Args:
            device: a dispatch key of torch: ``"CPU"``.
        """

        def register(function: Callable[P, None]) -> Callable[P, None]:
            if kernels is not None:
                _library.impl(self.name, self._checked(function), device)
            return function

        return register

    def _checked(self, function: Callable[P, None]) -> Callable[P, None]:
        # Once, here: whether the environment is right is no question of each call.
        check = self._check if problem is None else lambda *_args, **_kwargs: check_environment()

        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            check(*args, **kwargs)
            function(*args, **kwargs)

        return run

    def _triton(self, *args: P.args, **kwargs: P.kwargs) -> None:
        self._gpu(*args, **kwargs)

    @functools.cached_property
    def _gpu(self) -> Callable[P, None]:
        module = f"gradwire.ops.triton.{self.name}"
        if any(importlib.util.find_spec(needed) is None for needed in ("triton", "gradwire.ops.triton", module)):
            return self.reference
        kernel: Callable[P, None] = getattr(importlib.import_module(module), self.name)
        return kernel


def operation(schema: str, check: Callable[P, None]) -> Callable[[Callable[P, None]], Op[P]]:
    """Make an ``Op`` of the decorated reference.

    Args:
        schema: as ``torch.library`` reads it; outputs are marked ``Tensor(a!)`` and nothing is returned.
        check: called with the arguments of every call; raises ``ConfigError``.
    """

    def make(reference: Callable[P, None]) -> Op[P]:
        return Op(schema, reference, check)

    return make
