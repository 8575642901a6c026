"""What an operation is: its annotated signature, its plain-torch reference and its kernels.

1. It works on flat tensors, writes into the ones its schema marks ``(a!)``, and returns None.
2. The reference runs on any device and defines the bits: a kernel agrees with it on every one of them.
3. It is declared once: the operator's schema, the check of its arguments and the call of its C++ kernel follow from
   the annotations (``gradwire.ops.arguments``). A wrong argument is a ``ConfigError`` that names it, before a kernel
   sees an address.
4. The call goes through ``torch.ops.gradwire.<name>``, so ``torch.compile`` and autograd see an ordinary operator.
5. On the CPU the C++ kernel runs where the extension is loaded, on a GPU the Triton kernel of the same name, imported
   on first use; everywhere else, and where these are missing, the reference.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, overload

import torch

from gradwire.ops._declared import Declaration
from gradwire.ops.native import check_environment, kernels, problem, reference_forced

__all__ = ["OPERATIONS", "Op", "declared", "operation"]

P = ParamSpec("P")

OPERATIONS: dict[str, "Op[Any]"] = {}
"""Every operation that was made, by its name under ``torch.ops.gradwire``."""

Checked = Callable[[Callable[P, None]], Callable[P, None]]
"""Makes a function that checks its arguments first."""

_library: Any = torch.library.Library("gradwire", "DEF")  # type: ignore[no-untyped-call]


class Op(Generic[P]):
    """An operation: call it, or reach its reference and register its kernels.

    Attributes:
        name: its name under ``torch.ops.gradwire``.
        reference: the plain-torch version, without the checks.
        declaration: what its annotations say; None where they say nothing.
        triton: the module that has its GPU kernel, if there is one.
    """

    def __init__(
        self, schema: str, reference: Callable[P, None], checked: Checked[P], declaration: Declaration | None = None
    ) -> None:
        self.name = schema.partition("(")[0]
        self.reference = reference
        self.declaration = declaration
        family, _, last = reference.__module__.rpartition(".")
        self.triton = f"{family}.triton" if last == "ops" else f"{family}.triton.{last}"
        # Once, here: whether the environment is right is no question of each call.
        self._checked = checked if problem is None else _refused
        functools.update_wrapper(self, reference)
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(self.name, self._checked(reference), "CompositeExplicitAutograd")
        _library.impl(self.name, lambda *_args, **_kwargs: None, "Meta")
        if not reference_forced:
            _library.impl(self.name, self._checked(self._triton), "CUDA")
        self._dispatch: Any = getattr(torch.ops.gradwire, self.name).default
        OPERATIONS[self.name] = self

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

    def _triton(self, *args: P.args, **kwargs: P.kwargs) -> None:
        self._gpu(*args, **kwargs)

    @functools.cached_property
    def gpu_kernel(self) -> Callable[P, None] | None:
        """Its Triton kernel, imported on first use; None where there is none, or no Triton."""
        folder = self.triton.rpartition(".")[0]
        if any(importlib.util.find_spec(needed) is None for needed in ("triton", folder, self.triton)):
            return None
        return getattr(importlib.import_module(self.triton), self.name, None)

    @functools.cached_property
    def _gpu(self) -> Callable[P, None]:
        return self.gpu_kernel or self.reference


def _refused(_: Callable[P, None]) -> Callable[P, None]:
    return lambda *_args, **_kwargs: check_environment()


def operation(schema: str, check: Callable[P, None]) -> Callable[[Callable[P, None]], Op[P]]:
    """Make an ``Op`` of the decorated reference.

    Args:
        schema: as ``torch.library`` reads it; outputs are marked ``Tensor(a!)`` and nothing is returned.
        check: called with the arguments of every call; raises ``ConfigError``.
    """

    def checked(function: Callable[P, None]) -> Callable[P, None]:
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            check(*args, **kwargs)
            function(*args, **kwargs)

        return run

    return lambda reference: Op(schema, reference, checked)


@overload
def declared(reference: Callable[P, None], /) -> Op[P]: ...
@overload
def declared(
    *, check: Callable[..., None] | None = None, tables: tuple[str, ...] = (), threads: bool = True, native: bool = True
) -> Callable[[Callable[P, None]], Op[P]]: ...
def declared(
    reference: Callable[P, None] | None = None,
    /,
    *,
    check: Callable[..., None] | None = None,
    tables: tuple[str, ...] = (),
    threads: bool = True,
    native: bool = True,
) -> Op[P] | Callable[[Callable[P, None]], Op[P]]:
    """Make an ``Op`` of the decorated reference; schema, check and the call of its kernel follow from the annotations.

    Args:
        check: what the annotations cannot say: called in each call with the operation's name and with those of its
            arguments and symbols that it names; raises ``ConfigError``.
        tables: expressions over what is known of the call: tensors that somebody keeps and that its C++ kernel needs,
            too; it is given their addresses after the parameters.
        threads: whether its C++ kernel takes the number of threads as its last argument.
        native: whether that kernel is called as the annotations say; False: ``Op.kernel`` registers another call.

    Raises:
        TypeError: an annotation from which nothing follows.
    """

    def make(function: Callable[P, None]) -> Op[P]:
        said = Declaration(function, check, tables)
        op = Op(said.schema, function, said.checked, said)
        if native and kernels is not None and problem is None:
            _library.impl(op.name, said.kernel(kernels, threads), "CPU")
        return op

    return make if reference is None else make(reference)
