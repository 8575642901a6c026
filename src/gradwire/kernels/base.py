"""Operations: each has its annotated signature, its plain-torch reference and its kernels.

1. It works on flat tensors, or takes those of a gradient's shape as flat, writes into the ones its schema marks
   ``(a!)``, and returns None.
2. The reference runs on any device and defines the bits: a kernel agrees with it on every one of them.
3. It is declared once: the operator's schema, the check of its arguments and the call of its C++ kernel follow from
   the annotations (``gradwire.kernels.arguments``). A wrong argument is a ``ConfigError`` that names it, before a
   kernel sees an address.
4. The call goes through ``torch.ops.gradwire.<name>``, so ``torch.compile`` and autograd see an ordinary operator. Only
   where nobody watches, and the tensors are plain ones on the CPU, does it go straight to the C++ kernel: the way
   through the dispatcher takes longer than a kernel does for 2^16 elements. It needs torch 2.10, which lets the
   extension read tensors.
5. On the CPU the C++ kernel runs where the extension is loaded, on a GPU the Triton kernel of the same name, imported
   on first use; everywhere else, and where these are missing, the reference.
"""

import functools
import importlib
import importlib.util
import inspect
import operator
import struct
from collections.abc import Callable, MutableMapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch
from torch.autograd import profiler as autograd_profiler
from torch.utils.weak import WeakTensorKeyDictionary

from gradwire._once import once
from gradwire.errors import require
from gradwire.kernels._declared import Declaration
from gradwire.kernels.native import check_environment, kernels, problem, reference_forced
from gradwire.kernels.pieces import Each, Pieces, Places

__all__ = ["OPERATIONS", "Many", "Op", "declared", "find"]

P = ParamSpec("P")

T = TypeVar("T")

OPERATIONS: dict[str, "Op[Any]"] = {}
"""Every operation that was made, by its name under ``torch.ops.gradwire``."""

_RAISES = "Raises:\n    ConfigError: an argument is not as its annotation says, or does not fit the others."

_library: Any = torch.library.Library("gradwire", "DEF")  # type: ignore[no-untyped-call]


class Op(Generic[P]):
    """An operation, which can be called, has its reference, and registers its kernels.

    Attributes:
        name: name under ``torch.ops.gradwire``.
        reference: the plain-torch version, without the checks.
        declaration: content of the annotations.
        triton: the module that has its GPU kernel, if there is one.
        kernel_of_many: the call of its C++ kernel for many pieces, if there is one.
        gpu_takes_many: true where its GPU kernel takes many pieces in one launch.
    """

    # Of the object: what a compiler traces must not name what is in no module.
    is_compiling = staticmethod(torch.compiler.is_dynamo_compiling)

    def __init__(self, reference: Callable[P, None], declaration: Declaration, merges: bool) -> None:
        self.gpu_takes_many = merges and not reference_forced
        self.name = declaration.schema.partition("(")[0]
        self.reference = reference
        self.declaration = declaration
        family, _, last = reference.__module__.rpartition(".")
        self.triton = f"{family}.triton" if last == "ops" else f"{family}.triton.{last}"
        # Once, here: whether the environment is right is no question of each call.
        self._checked = declaration.checked if problem is None else _refused
        self.kernel_of_many: Callable[..., None] | None = None
        functools.update_wrapper(self, reference)
        # The same of every operation, so that no docstring says it.
        self.__doc__ = f"{inspect.getdoc(reference)}\n\n{_RAISES}"
        _library.define(declaration.schema, tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(self.name, self._checked(reference), "CompositeExplicitAutograd")
        _library.impl(self.name, self._on_meta, "Meta")
        if not reference_forced:
            _library.impl(self.name, self._checked(self.on_gpu), "CUDA")
        self._dispatch: Any = getattr(torch.ops.gradwire, self.name).default
        OPERATIONS[self.name] = self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Check the arguments and run the kernel of their device; once for all where the first is ``Pieces``."""
        self.call(*args, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> None:
        """Do so through the dispatcher, which is given flat tensors."""
        if args and type(args[0]) is Pieces:
            self.many(*args, **kwargs)
            return
        shaped = self.declaration.shaped
        args = tuple([_flat(value) if place in shaped else value for place, value in enumerate(args)])
        kwargs = {name: _flat(value) if name in shaped else value for name, value in kwargs.items()}
        self._dispatch(*args, **kwargs)

    @functools.cached_property
    def many(self) -> "Many":
        """The operation on many pieces in one call."""
        # Its operator can be registered once only, and threads meet here.
        return _many(self)

    def _on_meta(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Do nothing; refuse tensors of which some are elsewhere, which torch's dispatcher sends here, too."""
        if any(type(each) is torch.Tensor and not each.is_meta for each in (*args, *kwargs.values())):
            self._checked(self.reference)(*args, **kwargs)

    def on_gpu(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run the GPU kernel, or the reference if there is none; nothing is checked."""
        self._gpu(*args, **kwargs)

    @functools.cached_property
    def gpu_kernel(self) -> Callable[P, None] | None:
        """The Triton kernel, imported on first use; None if there is none, or no Triton."""
        folder = self.triton.rpartition(".")[0]
        if any(importlib.util.find_spec(needed) is None for needed in ("triton", folder, self.triton)):
            return None
        return getattr(importlib.import_module(self.triton), self.name, None)

    @functools.cached_property
    def _gpu(self) -> Callable[P, None]:
        return self.gpu_kernel or self.reference


class Many:
    """An operation on many pieces in one call: ``torch.ops.gradwire.<name>_each``, with a table in front.

    A table has a row for each piece: what is added to the arguments of the kernel, to the address of a tensor as to a
    number that every piece has of its own. It is made once for pieces that lie where they lay before, on the host, and
    a GPU's own form of it is made from it.
    """

    def __init__(self, op: Op[Any]) -> None:
        self.op, self.said = op, op.declaration
        self._row = self.said.row()
        self._conditions = list(self.said.number_checks().items())
        self._neutral = [self.said.neutral.get(name) for name in self.said.parameters]
        self._decisive = [name in self.said.decisive for name in self.said.parameters]
        name = f"{op.name}_each"
        _library.define(self.said.schema_of_many, tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(name, lambda *_args, **_kwargs: None, "Meta")
        if op.kernel_of_many is not None:
            _library.impl(name, op.kernel_of_many, "CPU")
        if op.gpu_takes_many:
            _library.impl(name, self.on_gpu, "CUDA")
        self._forms: MutableMapping[torch.Tensor, dict[str, Places | Each]] = WeakTensorKeyDictionary()
        self._merged: MutableMapping[torch.Tensor, Callable[..., None] | None] = WeakTensorKeyDictionary()
        self._dispatch: Any = getattr(torch.ops.gradwire, name).default

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the operation on all pieces."""
        if kwargs:
            named = dict(zip(self.said.parameters, args, strict=False)) | kwargs
            args = tuple(named.get(name, self.said.defaults.get(name)) for name in self.said.parameters)
        elif len(args) < len(self.said.parameters):
            args += tuple(self.said.defaults[name] for name in self.said.parameters[len(args) :])
        first: Pieces = args[0]
        device = first.base.device.type
        at_once = self.op.kernel_of_many is not None if device == "cpu" else self.op.gpu_takes_many
        if not at_once or device not in ("cpu", "cuda", "meta"):
            self._check_numbers(first, args)
            for i in range(len(first)):
                self.op(*(_of_piece(value, i) for value in args))
            return
        for name, check in self._conditions:
            given = dict(zip(self.said.parameters, args, strict=True))
            if type(given[name]) is not Each:
                check(**given)
        key, shared = self.shared(args)
        found = first.places.tables.get(key)
        self._dispatch(self._table(first, key, args) if found is None else found[0], *shared)

    def shared(self, args: tuple[Any, ...]) -> tuple[tuple[object, ...], list[Any]]:
        """The key of the arguments' table, and what all pieces share: the tensor in which they lie, and 0 for each
        number that differs.
        """
        # One pass finds both, because every exchange comes here several times in each step.
        key: list[object] = [self.op.name]
        shared: list[Any] = []
        for value, neutral, decisive in zip(args, self._neutral, self._decisive, strict=True):
            kind = type(value)
            if kind is Pieces:
                base = value.base
                key += (id(value.places), base.dtype, base.shape, base.device)
                shared.append(base)
            elif kind is Each:
                key.append(id(value))
                shared.append(neutral)
            else:
                if isinstance(value, torch.Tensor):
                    key += (value.dtype, value.shape, value.stride(), value.device)
                elif value is None or decisive:
                    key.append(value)
                shared.append(value)
        return tuple(key), shared

    def table(self, *args: Any) -> torch.Tensor:
        """The table for all arguments of a call, none left out."""
        key, _ = self.shared(args)
        found = args[0].places.tables.get(key)
        return self._table(args[0], key, args) if found is None else found[0]

    def _check_numbers(self, first: Pieces, args: tuple[Any, ...]) -> None:
        """Refuse arguments of another number of pieces than the first."""
        for name, value in zip(self.said.parameters, args, strict=True):
            if type(value) in (Pieces, Each) and len(value) != len(first):
                require(False, f"{self.op.name}.{name}", f"of {len(first)} pieces, as the first", len(value))

    def _table(self, first: Pieces, key: tuple[object, ...], args: tuple[Any, ...]) -> torch.Tensor:
        """Make the table for these places; the objects it depends on are kept with it, so that none is replaced at its
        address.
        """
        self._check_numbers(first, args)
        tables, given = first.places.tables, dict(zip(self.said.parameters, args, strict=True))
        if len(tables) > MOST_TABLES:
            tables.clear()
        forms = {name: getattr(value, "places", value) for name, value in given.items()}
        forms = {name: form for name, form in forms.items() if isinstance(form, Places | Each)}
        table = self._make(len(first), given)
        self._forms[table] = forms
        # The last of all: another thread that finds the table needs its forms.
        tables[key] = table, tuple(forms.values())
        return table

    def sizes(self, table: torch.Tensor) -> dict[str, int]:
        """Count the elements that all pieces have together, for each argument in which they lie: of one row of it.

        Args:
            table: one that this operation was called with.
        """
        return {name: sum(form.sizes) for name, form in self._forms[table].items() if isinstance(form, Places)}

    def _make(self, rows: int, given: dict[str, Any]) -> torch.Tensor:
        bases = {name: value.base if type(value) is Pieces else value for name, value in given.items()}
        table = []
        for i in range(rows):
            own = {name: _of_piece(value, i) for name, value in given.items()}
            numbers = self._row(**own)
            table.append(
                [self._added(n, v, given, own, bases) for n, v in zip(self.said.columns, numbers, strict=True)]
            )
        return torch.tensor(table, dtype=torch.int64, device="cpu").view(rows, len(self.said.columns))

    def _added(self, name: str, number: Any, given: dict[str, Any], own: dict[str, Any], bases: dict[str, Any]) -> int:
        """Compute what a row adds to the kernel's argument: nothing for what all pieces share."""
        value = given.get(name)
        if not name:
            return int(number)
        if type(value) is Each:
            if self.said.types[name] is float:
                return int.from_bytes(struct.pack("<d", number), "little", signed=True)
            return operator.index(number)
        if type(value) is Pieces and number == own[name].data_ptr() and number:
            return int(number - bases[name].data_ptr())
        return 0

    def on_gpu(self, table: torch.Tensor, *shared: Any) -> None:
        """Launch once for all pieces if their kernels are the same, else once for each."""
        if table not in self._merged:
            self._merged[table] = self._merge([self._call(table, shared, i) for i in range(table.size(0))])
        merged = self._merged[table]
        if merged is not None:
            merged(*self._call(table, shared, 0))
        else:
            self.one_by_one(self.op.on_gpu, table, *shared)

    def one_by_one(self, run: Callable[..., None], table: torch.Tensor, *shared: Any) -> None:
        """Call ``run`` with the arguments of each piece: the reference, or the kernel for one."""
        for i in range(table.size(0)):
            run(*self._call(table, shared, i))

    def _call(self, table: torch.Tensor, shared: tuple[Any, ...], i: int) -> tuple[Any, ...]:
        """Select the arguments of piece ``i`` from what all share."""
        # The dispatcher leaves out the last arguments where they are as by default.
        shared += tuple(self.said.defaults[name] for name in self.said.parameters[len(shared) :])
        form, named = self._forms[table], zip(self.said.parameters, shared, strict=True)
        return tuple(_of_piece(value, i, form.get(name)) for name, value in named)

    def _merge(self, calls: list[tuple[Any, ...]]) -> Callable[..., None] | None:
        many = importlib.import_module("gradwire.kernels.triton.many")
        try:
            merged: Callable[..., None] = many.Merged(self.op.on_gpu, calls)
        except ValueError:
            return None
        return merged


_many = once(Many)

MOST_TABLES = 64
"""Most tables of calls whose first pieces lie at the same places: a number on which a size depends may change in every
step."""


def _of_piece(value: Any, i: int, form: Places | Each | None = None) -> Any:
    """Select a piece's part of an argument, or of the tensor that all pieces share."""
    if type(value) is Pieces:
        value, form = value.base, value.places
    if isinstance(form, Places):
        lo = form.offsets[i]
        return value[..., lo : lo + form.sizes[i]]
    own = form if form is not None else value
    return own[i] if type(own) is Each else value


_WATCHERS: tuple[Callable[[], object], ...] = (
    torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack,
    torch._C._autograd._profiler_enabled,
    torch._C._functorch.peek_interpreter_stack,
    torch._C._is_tracing,
)
"""Functions of which one returns something true where somebody sees the operators that are called: a mode, a
transform, a trace or a profiler of this thread.

Not seen are an ``ExecutionTraceObserver`` without a profiler, and a CPU kernel that was put in place of ours by
``torch.library``.
"""


def _reads_tensors() -> bool:
    """Let the extension read tensors; return whether it can, as it can with torch 2.10."""
    exchange_api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if kernels is None or exchange_api is None:
        return False
    kernels.read_with(
        exchange_api, torch.Tensor, _WATCHERS, torch.is_grad_enabled, torch.Tensor.is_neg, autograd_profiler
    )
    return True


_goes_direct = _reads_tensors()


def _flat(value: Any) -> Any:
    """View a contiguous tensor as flat; what is none is left to the checks."""
    return value.view(-1) if isinstance(value, torch.Tensor) and value.dim() != 1 and value.is_contiguous() else value


def _refused(_: Callable[P, None]) -> Callable[P, None]:
    return lambda *_args, **_kwargs: check_environment()


def find(name: str) -> tuple[Op[Any], bool]:
    """Find the operation of this name under ``torch.ops.gradwire``, and whether it is the form for many pieces."""
    single = name.removesuffix("_each")
    return OPERATIONS[single], single != name


@overload
def declared(reference: Callable[P, None], /) -> Op[P]: ...
@overload
def declared(
    *,
    check: Callable[..., None] | None = None,
    tables: tuple[str, ...] = (),
    threads: bool = True,
    native: bool = True,
    merges: bool = False,
) -> Callable[[Callable[P, None]], Op[P]]: ...
def declared(
    reference: Callable[P, None] | None = None,
    /,
    *,
    check: Callable[..., None] | None = None,
    tables: tuple[str, ...] = (),
    threads: bool = True,
    native: bool = True,
    merges: bool = False,
) -> Op[P] | Callable[[Callable[P, None]], Op[P]]:
    """Make an ``Op`` of the decorated reference; schema, check and the call of its kernel follow from the annotations.

    Args:
        check: function that checks what the annotations cannot say: called in each call with the operation's name and
            with those of its arguments and symbols that it names; raises ``ConfigError``.
        tables: expressions over what is known of the call: calls of functions that make a tensor ``once``, which its
            C++ kernel needs, too; it is given their addresses after the parameters.
        threads: true: the C++ kernel takes the number of threads as its last argument.
        native: true: it has a C++ kernel, which is called as the annotations say; false: it has none.
        merges: true: the GPU wrapper only launches kernels, each of which takes ``program``, so that the launches of
            several pieces merge into one.

    Raises:
        TypeError: an annotation from which nothing follows.
    """

    def make(function: Callable[P, None]) -> Op[P]:
        said = Declaration(function, check, tables)
        has_kernel = native and kernels is not None and problem is None
        direct = said.direct(kernels, threads) if has_kernel and _goes_direct else None
        # Where the dispatcher would do nothing but call the kernel, the object's call is the kernel's. Python looks for
        # it in the class, and one of its own takes the arguments as they come: packing and unpacking them would be a
        # fifth of the call.
        kind = Op if direct is None else type(function.__name__, (Op,), {"__call__": direct})
        op: Op[P] = kind(function, said, merges)
        if has_kernel:
            _library.impl(op.name, said.kernel(kernels, threads), "CPU")
            op.kernel_of_many = said.kernel_of_many(kernels, threads)
        return op

    return make if reference is None else make(reference)
